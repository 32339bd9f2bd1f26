"""The hooks of LinUCB, LinTS and neural LinUCB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy
import torch
from gymnasium import Space
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from rlplug import Algorithm, Batch, LearnerView, UnsupportedSpaceError, hookimpl
from rlplug.errors import RunFailedError
from rlplug.feeds import Stream
from rlplug.nn import make_encoder
from rlplug.seeding import forked
from rlplug.spaces import as_array, number_of_arms
from rlplug_linucb.config import LinearOptions, LinTSConfig, LinUCBConfig, NeuralLinUCBConfig
from rlplug_linucb.module import Columns, LinTSModule, LinUCBModule
from rlplug_linucb.neural import DRAWN, Kept, NeuralLinUCBModule, Window, input_layout
from rlplug_linucb.rows import layout_of, model_name

__all__ = ["LinTS", "LinUCB", "NeuralLinUCB", "plain_ridge"]

_SCORES = {"predicted": "pred_label", "sigma": "pred_sigma", "ucb": "ucb", "sampled": "sampled"}
"""Metrics, and the columns that they are means of."""


class LinUCB(Algorithm):
    """Chooses arms by upper confidence bounds of linear models learned in closed form."""

    Config: ClassVar[type[LinearOptions]] = LinUCBConfig
    default_env: ClassVar[str] = "LinearBandit-v0"
    default_steps: ClassVar[int] = 20_000
    untested_options: ClassVar[Mapping[str, str]] = {
        "refresh_every": "it bounds rounding errors, which several rows at once do not have",
    }
    reference: ClassVar[str] = "rlplug_linucb.algorithm:plain_ridge"
    variants: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"discount": 0.9, "l2_lambda": 0.5},
        {"model": "hybrid"},
        {"l2_lambda": 0.0},
        {"update_every": 3},
    )
    config: LinearOptions

    def feed(self) -> Stream:
        """Each row is learned from once, as soon as its reward is known."""
        return Stream(steps_per_update=self.config.update_every, one_step_episodes=True)

    def supports(self, observation_space: Space[Any], action_space: Space[Any]) -> str | None:
        """Why these spaces are not supported with these options; None if they are."""
        try:
            layout = layout_of(observation_space, action_space)
            model_name(layout, self.config)
        except UnsupportedSpaceError as error:
            return error.message
        return None

    @hookimpl
    def configure_optimizers_for_module(self) -> None:
        """No optimizer: the update is in closed form."""

    @hookimpl
    def build(
        self, observation_space: Space[Any], action_space: Space[Any], config: Any
    ) -> LinUCBModule:
        """The untrained module."""
        kind = LinTSModule if isinstance(config, LinTSConfig) else LinUCBModule
        return kind(layout_of(observation_space, action_space), config)

    @hookimpl
    def additional_update(
        self, module: LinUCBModule, config: Any, batch: Batch, learner: LearnerView
    ) -> Mapping[str, float]:
        """Learn the batch in closed form; metrics are of the predictions made before."""
        module.alpha[0] = config.v if isinstance(config, LinTSConfig) else config.alpha
        columns = batch.columns
        label = columns.get("label", columns["rewards"])
        weights = effective_weights(columns)
        rows = module.columns(columns["observations"], columns["actions"], label, weights)
        learn_together(module, rows, learner)
        return {**prediction_metrics(columns, label), **module.solved()}


class LinTS(LinUCB):
    """Chooses arms by Thompson sampling from linear models learned in closed form."""

    Config: ClassVar[type[LinearOptions]] = LinTSConfig


class NeuralLinUCB(Algorithm):
    """LinUCB on the last hidden layer of a network that learns to predict rewards."""

    Config: ClassVar[type[NeuralLinUCBConfig]] = NeuralLinUCBConfig
    default_env: ClassVar[str] = "RingsBandit-v0"
    default_steps: ClassVar[int] = 20_000
    config: NeuralLinUCBConfig

    def feed(self) -> Stream:
        """Each row is learned from once its reward is known."""
        return Stream(steps_per_update=self.config.update_every, one_step_episodes=True)

    def supports(self, observation_space: Space[Any], action_space: Space[Any]) -> str | None:
        """Why these spaces are not supported; None if they are."""
        try:
            space, _ = input_layout(observation_space, number_of_arms(action_space))
            if not self.config.encoder:
                with forked(0):
                    make_encoder(space)
        except UnsupportedSpaceError as error:
            return error.message
        return None

    @hookimpl
    def build(
        self, observation_space: Space[Any], action_space: Space[Any], config: NeuralLinUCBConfig
    ) -> NeuralLinUCBModule:
        """The untrained module."""
        return NeuralLinUCBModule(observation_space, number_of_arms(action_space), config)

    @hookimpl
    def build_extra(
        self, module: NeuralLinUCBModule, config: NeuralLinUCBConfig, seed: int
    ) -> Window:
        """The buffer of recent rows."""
        return Window(module.input_space, config.buffer_size, seed)

    @hookimpl
    def prepare_batch(
        self, module: NeuralLinUCBModule, extra: Window, config: NeuralLinUCBConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Add the new rows to the buffer, and draw the rows of this gradient step."""
        rows = _rows(module, batch)
        outside = (rows.labels < 0.0) | (rows.labels > 1.0)
        if config.loss == "cross_entropy" and bool(outside.any()):
            raise RunFailedError(
                f"rlplug-linucb: a reward is {float(rows.labels[outside][0])}, and cross-entropy "
                "takes 0 to 1.",
                "nothing was changed; try: loss = 'mse'",
            )
        extra.add(rows)
        # Each column has one entry per new row: here, several drawn rows.
        drawn = extra.draw((batch.rows, -(-config.batch_size // batch.rows)))
        return {f"{DRAWN}{name}": column for name, column in drawn._asdict().items()}

    @hookimpl
    def compute_loss_for_module(
        self,
        module: NeuralLinUCBModule,
        config: NeuralLinUCBConfig,
        batch: Batch,
        fwd_out: Mapping[str, Tensor],
    ) -> Tensor:
        """Weighted squared error, or cross-entropy, of the chosen arms' predicted rewards."""
        rows = _rows(module, batch)
        if f"{DRAWN}actions" in batch:
            rows = Kept(*(batch[f"{DRAWN}{name}"] for name in Kept._fields))
        labels, weights = rows.labels.reshape(-1), rows.weights.reshape(-1)
        predicted = fwd_out["values"].gather(1, rows.actions.reshape(-1, 1)).squeeze(1)
        if config.loss == "cross_entropy":
            losses = binary_cross_entropy_with_logits(predicted, labels, reduction="none")
            return (weights * losses).mean()
        errors = predicted - labels
        return (weights * errors * errors).mean()

    @hookimpl
    def additional_update(
        self,
        module: NeuralLinUCBModule,
        extra: Window,
        config: NeuralLinUCBConfig,
        batch: Batch,
        timestep: int,
        learner: LearnerView,
    ) -> Mapping[str, float]:
        """Learn the rows in closed form, or refit on all rows of the buffer."""
        module.alpha[0] = config.alpha
        rows = _rows(module, batch)
        if timestep - int(extra.counts[3]) >= config.refit_every:
            module.update_frozen_copy()
            columns = module.columns_of(extra.rows())
            sums = sum_together(module, columns, learner)
            module.discount_(0.0)
            module.absorb(sums, len(columns[1]))
            extra.counts[3] = timestep
        else:
            learn_together(module, module.columns_of(rows), learner)
        return {**prediction_metrics(batch, rows.labels), **module.solved()}


def _rows(module: NeuralLinUCBModule, batch: Batch) -> Kept:
    """The rows of the batch as inputs of the network; arms with inputs of their own are arm 0."""
    labels = batch["label" if "label" in batch else "rewards"].reshape(-1)
    weights = effective_weights(batch)
    weights = torch.ones_like(labels) if weights is None else weights.reshape(-1)
    actions = batch["actions"].reshape(-1).long().to(labels.device)
    inputs = module.chosen_inputs(batch["observations"], actions)
    arms = torch.zeros_like(actions) if module.featured else actions
    return Kept(inputs, arms, labels, weights)


def effective_weights(columns: Mapping[str, Any]) -> Any:
    """Weight times importance weight of each row; None: 1."""
    weights, importance = columns.get("weights"), columns.get("importance_weight")
    if weights is None or importance is None:
        return importance if weights is None else weights
    return torch.as_tensor(weights) * torch.as_tensor(importance)


def learn_together(bandit: LinUCBModule, columns: Columns, learner: LearnerView) -> None:
    """Learn the columns of all learners."""
    if learner.world_size == 1:
        bandit.learn_columns(*columns)
        return
    # The discount is per row: learners that step together follow the one with the most rows.
    (most,) = learner.all_reduce([torch.tensor(len(columns[1]), device=learner.device)], "max")
    bandit.absorb(sum_together(bandit, columns, learner), int(most))


def sum_together(bandit: LinUCBModule, columns: Columns, learner: LearnerView) -> list[Tensor]:
    """The sums of the columns of all learners."""
    sums = bandit.sum_columns(*columns)
    return learner.all_reduce([total.to(learner.device) for total in sums])


def prediction_metrics(columns: Mapping[str, Any], labels: Any) -> Mapping[str, float]:
    """Scores by which arms were chosen, and the squared error of the predicted rewards."""
    if "pred_label" not in columns:
        return {}
    names = {name: column for name, column in _SCORES.items() if column in columns}
    if len(labels) == 1:
        # Reductions of arrays would cost more than the update.
        scores = {name: columns[column].item() for name, column in names.items()}
        error = (scores["predicted"] - labels.item()) ** 2
    else:
        scores = {name: float(columns[column].mean()) for name, column in names.items()}
        errors = as_array(columns["pred_label"]) - as_array(labels).reshape(-1)
        error = float((errors * errors).mean())
    return {"progressive_error": error, **scores}


def plain_ridge(
    config: LinearOptions, rows: Mapping[str, Any], observations: Any, count: int
) -> Mapping[str, Any] | None:
    """Means, deviations and bounds of every arm of disjoint models, plainly from all rows at once.

    `rlplug plugins check` compares them; None for all other models.
    """
    is_disjoint = config.model in ("auto", "disjoint") and config.l2_lambda > 0.0
    if not is_disjoint or numpy.ndim(observations) != 2:
        return None
    x = rows["observations"].astype(float)
    decayed = rows["weights"] * config.discount ** numpy.arange(len(x))[::-1]
    means, deviations = [], []
    for arm in range(count):
        weighted = x.T * (decayed * (rows["actions"] == arm))
        A_inv = numpy.linalg.inv(weighted @ x + config.l2_lambda * numpy.eye(x.shape[1]))
        means.append(observations @ (A_inv @ (weighted @ rows["rewards"])))
        deviations.append(numpy.sqrt(((observations @ A_inv) * observations).sum(1)))
    expected = {"pred_label": numpy.stack(means, 1), "pred_sigma": numpy.stack(deviations, 1)}
    if isinstance(config, LinUCBConfig):
        expected["ucb"] = expected["pred_label"] + config.alpha * expected["pred_sigma"]
    return expected
