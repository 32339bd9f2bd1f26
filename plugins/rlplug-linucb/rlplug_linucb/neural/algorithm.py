"""Neural LinUCB: its hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug import Algorithm, Batch, LearnerView, UnsupportedSpaceError, hookimpl
from rlplug.bandits import BanditBatch
from rlplug.feeds import Stream
from rlplug.nn import make_encoder
from rlplug.seeding import forked
from rlplug.spaces import whole_numbers
from rlplug_linucb.algorithm import prediction_metrics, update_across_learners
from rlplug_linucb.layout import number_of_arms
from rlplug_linucb.neural.config import NeuralLinUCBConfig
from rlplug_linucb.neural.module import DRAWN, NeuralLinUCBModule, context_in
from rlplug_linucb.neural.window import Kept, Window

__all__ = ["NeuralLinUCB"]


class NeuralLinUCB(Algorithm):
    """LinUCB on the last hidden layer of a network that learns to predict rewards."""

    Config: ClassVar[type[NeuralLinUCBConfig]] = NeuralLinUCBConfig
    default_env: ClassVar[str] = "RingsBandit-v0"
    default_steps: ClassVar[int] = 20_000
    config: NeuralLinUCBConfig

    def feed(self) -> Stream:
        """Each row is learned from once its reward is known."""
        return Stream(steps_per_update=self.config.update_every, one_step_episodes=True)

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """Why these spaces are not supported; None if they are."""
        try:
            number_of_arms(action_space)
            context = context_space_in(observation_space)
            if not self.config.encoder:
                with forked(0):
                    make_encoder(context)
        except UnsupportedSpaceError as error:
            return error.message
        return None

    @hookimpl
    def build(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        config: NeuralLinUCBConfig,
    ) -> NeuralLinUCBModule:
        """The untrained module."""
        arms = number_of_arms(action_space)
        return NeuralLinUCBModule(context_space_in(observation_space), arms, config)

    @hookimpl
    def build_extra(
        self, observation_space: gymnasium.Space[Any], config: NeuralLinUCBConfig, seed: int
    ) -> Window:
        """The buffer of recent rows."""
        return Window(context_space_in(observation_space), config.buffer_size, seed)

    @hookimpl
    def prepare_batch(
        self, extra: Window, config: NeuralLinUCBConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Add the new rows to the buffer, and draw the rows of this gradient step."""
        extra.add(_rows(batch))
        # Each column has one entry per new row: here, several drawn rows.
        drawn = extra.draw((batch.rows, -(-config.batch_size // batch.rows)))
        return {f"{DRAWN}{name}": column for name, column in drawn._asdict().items()}

    @hookimpl
    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Tensor:
        """Weighted mean squared error of the chosen arms' predicted rewards."""
        drawn = f"{DRAWN}actions" in batch
        rows = Kept(*(batch[f"{DRAWN}{name}"] for name in Kept._fields)) if drawn else _rows(batch)
        _, actions, labels, weights = rows
        predicted = fwd_out["values"].gather(1, actions.reshape(-1, 1)).squeeze(1)
        errors = predicted - labels.reshape(-1)
        return (weights.reshape(-1) * errors * errors).mean()

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
        bandit = module.bandit
        bandit.set_alpha(config.alpha)
        rows = _rows(batch)
        if timestep - extra.refitted >= config.refit_every:
            module.refit(extra.rows(), learner)
            extra.refitted = timestep
        else:
            learned = rows._replace(observations=module.features(rows.observations))
            if learner.world_size == 1:
                bandit.update(*learned)
            else:
                update_across_learners(bandit, learned, learner)
        return {**prediction_metrics(batch, rows.labels), **bandit.fallbacks()}


def context_space_in(observation_space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """The space that the network reads."""
    if not isinstance(observation_space, spaces.Dict):
        if isinstance(observation_space, spaces.Tuple):
            raise UnsupportedSpaceError(
                f"a neural bandit reads one space of contexts, found {observation_space}."
            )
        return observation_space
    parts = observation_space.spaces
    if "arms" in parts:
        raise UnsupportedSpaceError(
            "a neural bandit needs arms that mean the same in every context, "
            "the observations have a key 'arms'; try: --algo linucb"
        )
    unknown = sorted(set(parts) - {"context", "action_mask"})
    if unknown or "context" not in parts:
        raise UnsupportedSpaceError(
            "a neural bandit reads the observation keys context and action_mask; "
            f"found {', '.join(sorted(parts)) or 'none'}."
        )
    return context_space_in(parts["context"])


def _rows(batch: Batch) -> Kept:
    given: Any = BanditBatch.of(batch, read=batch.__getitem__, validate=False)
    labels = given.label.reshape(-1)
    weights = given.effective_weight if given.weighted else torch.ones_like(labels)
    actions = given.actions
    if actions.is_floating_point():
        actions = torch.from_numpy(whole_numbers(actions.cpu(), "rlplug-linucb: arm"))
    return Kept(
        context_in(batch["observations"]),
        actions.reshape(-1).long().to(labels.device),
        labels,
        weights.reshape(-1),
    )
