"""The algorithms LinUCB and LinTS: their hooks, and the closed-form update of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy
import torch

from rlplug import Algorithm, Batch, LearnerView, hookimpl
from rlplug.bandits import BanditBatch
from rlplug.feeds import Stream
from rlplug_linucb.config import LinearOptions, LinTSConfig, LinUCBConfig
from rlplug_linucb.layout import Layout, layout_of
from rlplug_linucb.models import unsupported_reason
from rlplug_linucb.module import LinUCBModule
from rlplug_linucb.thompson import LinTSModule

__all__ = [
    "LinTS",
    "LinUCB",
    "plain_ridge",
    "prediction_metrics",
    "update_across_learners",
]


_SCORES = {"predicted": "pred_label", "sigma": "pred_sigma", "ucb": "ucb", "sampled": "sampled"}
"""Metrics, and the columns that they are means of."""


class _LinearBandit(Algorithm):
    """What LinUCB and LinTS share: environments, spaces, and learning without an optimizer."""

    default_env: ClassVar[str] = "LinearBandit-v0"
    default_steps: ClassVar[int] = 20_000
    untested_options: ClassVar[Mapping[str, str]] = {
        "refresh_every": "it bounds rounding errors, which several rows at once do not have",
    }
    reference: ClassVar[str] = "rlplug_linucb.algorithm:plain_ridge"
    variants: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"discount": 0.9, "l2_lambda": 0.5},
        {"discount": 0.9, "squared_discount": True},
        {"model": "hybrid"},
        {"l2_lambda": 0.0},
        {"update_every": 3},
    )
    config: LinearOptions

    def feed(self) -> Stream:
        """Each row is learned from once, as soon as its reward is known."""
        return Stream(steps_per_update=self.config.update_every, one_step_episodes=True)

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """Why these spaces are not supported with these options; None if they are."""
        return unsupported_reason(observation_space, action_space, self.config)

    @hookimpl
    def configure_optimizers_for_module(self) -> None:
        """No optimizer: the update is in closed form."""


class LinUCB(_LinearBandit):
    """Chooses arms by upper confidence bounds of linear models learned in closed form."""

    Config: ClassVar[type[LinUCBConfig]] = LinUCBConfig
    config: LinUCBConfig

    @hookimpl
    def build(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        config: LinUCBConfig,
    ) -> LinUCBModule:
        """The untrained module."""
        return LinUCBModule(_layout(observation_space, action_space, config), config)

    @hookimpl
    def additional_update(
        self, module: LinUCBModule, config: LinUCBConfig, batch: Batch, learner: LearnerView
    ) -> Mapping[str, float]:
        """Learn the batch in closed form; metrics are of the predictions made before."""
        module.set_alpha(config.alpha)
        return _update(module, batch, learner)


class LinTS(_LinearBandit):
    """Chooses arms by Thompson sampling from linear models learned in closed form."""

    Config: ClassVar[type[LinTSConfig]] = LinTSConfig
    config: LinTSConfig

    @hookimpl
    def build(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        config: LinTSConfig,
    ) -> LinTSModule:
        """The untrained module."""
        return LinTSModule(_layout(observation_space, action_space, config), config)

    @hookimpl
    def additional_update(
        self, module: LinTSModule, config: LinTSConfig, batch: Batch, learner: LearnerView
    ) -> Mapping[str, float]:
        """Learn the batch in closed form; metrics are of the predictions made before."""
        module.bandit.set_alpha(config.v)
        return _update(module.bandit, batch, learner)


def update_across_learners(
    bandit: LinUCBModule, rows: tuple[Any, ...], learner: LearnerView
) -> None:
    """Learn observations, actions, rewards and weights of all learners."""
    count = torch.tensor(len(rows[1]), device=learner.device)
    # The discount is per row: learners that step together follow the one with the most rows.
    (most,) = learner.all_reduce([count], "max")
    bandit.absorb(learner.all_reduce(bandit.statistics(*rows)), int(most))


def prediction_metrics(batch: Batch, labels: Any) -> Mapping[str, float]:
    """Scores by which arms were chosen, and the squared error of the predicted rewards."""
    if "pred_label" not in batch:
        return {}
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu().numpy()
    labels = labels.reshape(-1)
    scores = {name: batch.array(column) for name, column in _SCORES.items() if column in batch}
    if len(labels) == 1:
        # Reductions of arrays would cost more than the update.
        error = scores["predicted"].item() - labels.item()
        single = {name: column.item() for name, column in scores.items()}
        return {"progressive_error": error * error, **single}
    errors = scores["predicted"] - labels
    means = {name: float(column.mean()) for name, column in scores.items()}
    return {"progressive_error": float(numpy.vdot(errors, errors)) / len(errors), **means}


def _layout(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    config: LinearOptions,
) -> Layout:
    return layout_of(observation_space, action_space, config.arms, config.max_arms)


def _update(bandit: LinUCBModule, batch: Batch, learner: LearnerView) -> Mapping[str, float]:
    # The module checks what it learns, and names the place: it need not be checked twice.
    read = batch.array if bandit.on_cpu else batch.__getitem__
    rows = BanditBatch.of(batch, read=read, validate=False)
    if learner.world_size == 1:
        bandit.learn(rows)
    else:
        weights = rows.effective_weight if rows.weighted else None
        columns = (rows.observations, rows.actions, rows.label, weights)
        update_across_learners(bandit, columns, learner)
    return {**prediction_metrics(batch, rows.label), **bandit.fallbacks()}


def plain_ridge(
    config: LinearOptions, rows: Mapping[str, Any], observations: Any, count: int
) -> Mapping[str, Any] | None:
    """Means, deviations and bounds of every arm of disjoint models, plainly from all rows at once.

    `rlplug plugins check` compares them; None for all other models.

    With `squared_discount` they are D-LinUCB's: (A + λI)⁻¹ (A₂ + λI) (A + λI)⁻¹, where A₂ is
    discounted by the square.
    """
    if not isinstance(observations, numpy.ndarray) or observations.ndim != 2:
        return None
    if config.model not in ("auto", "disjoint") or not config.l2_lambda:
        return None
    x, chosen = rows["observations"].astype(float), rows["actions"].astype(int)
    ages = numpy.arange(len(x))[::-1]
    weights = rows["weights"] * config.discount**ages
    squared = rows["weights"] * config.discount ** (2 * ages)
    penalty = config.l2_lambda * numpy.eye(x.shape[1])
    means, deviations = [], []
    for arm in range(count):
        of_arm = chosen == arm
        features, rewards = x[of_arm], rows["rewards"][of_arm]
        A = (features * weights[of_arm, None]).T @ features + penalty
        A_inv = numpy.linalg.inv(A)
        theta = A_inv @ ((features * weights[of_arm, None]).T @ rewards)
        if config.squared_discount:
            A2 = (features * squared[of_arm, None]).T @ features + penalty
            A_inv = A_inv @ A2 @ A_inv
        means.append(observations @ theta)
        deviations.append(numpy.sqrt(((observations @ A_inv) * observations).sum(1)))
    found = {"pred_label": numpy.stack(means, 1), "pred_sigma": numpy.stack(deviations, 1)}
    if isinstance(config, LinUCBConfig):
        found["ucb"] = found["pred_label"] + config.alpha * found["pred_sigma"]
    return found
