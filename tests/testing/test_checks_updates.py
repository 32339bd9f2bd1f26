"""Checks of what updates make of batches: ends, advantages, columns, priorities, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor

from rlplug import Batch, Loss, option
from rlplug.feeds import Feed, Replay, Rollout
from rlplug.testing.algorithms import PolicyGradient, PolicyGradientConfig, QLearning
from tests.faulty import failure, passed_by, passes

# -- bootstrapping ---------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class TruncationConfig(PolicyGradientConfig):
    """An option about time limits."""

    truncation_ends: bool = option(False, "Whether time limits end episodes.")


class WithOption(PolicyGradient):
    """Ends episodes at time limits where it is asked to."""

    Config: ClassVar[type[Any]] = TruncationConfig

    def ends(self, config: Any, batch: Batch) -> Tensor:
        """Steps after which nothing counts."""
        ended = batch["terminated"]
        return ended | batch["truncated"] if config.truncation_ends else ended

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Mapping[str, Tensor]:
        future = module.values(batch["next_observations"]) * ~self.ends(config, batch)
        aims = batch["rewards"] + config.gamma * future
        return {"targets": aims, "advantages": aims - module.values(batch["observations"])}


class EndsAtTimeLimits(WithOption):
    """Ends episodes there always."""

    Config: ClassVar[type[Any]] = PolicyGradientConfig

    def ends(self, config: Any, batch: Batch) -> Tensor:
        return batch["terminated"] | batch["truncated"]


class NeverEnds(EndsAtTimeLimits):
    """Ends none."""

    def ends(self, config: Any, batch: Batch) -> Tensor:
        return torch.zeros_like(batch["terminated"])


def test_what_is_wrong_with_ends_of_episodes_is_told() -> None:
    told = failure("truncated_steps_bootstrap", EndsAtTimeLimits)
    assert told.looked_for == "truncated steps that bootstrap like steps in mid-episode"
    assert told.found.startswith("the update differs: ")
    assert told.look_at.startswith("EndsAtTimeLimits.prepare_batch (")
    assert told.look_at.endswith('): read batch["terminated"], not "truncated"')
    told = failure("terminated_steps_do_not_bootstrap", NeverEnds)
    assert told.looked_for == "an update that ignores the observation after a terminated step"
    assert told.found.startswith("it depends on it: ")
    assert told.look_at.startswith("NeverEnds.prepare_batch (")
    assert told.look_at.endswith('): try `* ~batch["terminated"]` on next values')


class NextRow(PolicyGradient):
    """Takes the next row for the next state."""

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Mapping[str, Tensor]:
        future = module.values(batch["observations"]).roll(-1) * ~batch["terminated"]
        aims = batch["rewards"] + config.gamma * future
        return {"targets": aims, "advantages": aims - module.values(batch["observations"])}


class OfTheMean(PolicyGradient):
    """Takes the mean over all rows off, and multiplies by what is left: no leak."""

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Mapping[str, Tensor]:
        prepared = dict(super().prepare_batch(module, config, batch))
        advantages = prepared["advantages"]
        normalized = (advantages - advantages.mean()) / advantages.std()
        return {**prepared, "advantages": normalized}


def test_rows_that_depend_on_others_are_told() -> None:
    passes("fragments_do_not_leak", PolicyGradient)
    passes("fragments_do_not_leak", OfTheMean)
    told = failure("fragments_do_not_leak", NextRow)
    assert told.looked_for == (
        "columns of an episode that do not depend on later ones in the batch"
    )
    # In mid-batch, of six steps in each of four environments.
    assert ", with others after them [" in told.found
    assert told.look_at.startswith("NextRow.prepare_batch (")
    assert told.look_at.endswith("): mind fragments and their final observations")


# -- advantages ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class GaeConfig(PolicyGradientConfig):
    """Options of advantages."""

    gae_lambda: float = option(0.9, "Lambda of the advantages.")
    normalize_advantage: bool = option(True, "Normalize the advantages of a rollout.")
    n_steps: int = option(16, "Steps of each environment per rollout.")


class Gae(PolicyGradient):
    """Generalised advantage estimation."""

    Config: ClassVar[type[Any]] = GaeConfig
    sign: ClassVar[float] = 1.0

    def feed(self) -> Feed:
        return Rollout(n_steps=self.config.n_steps, batch_size=0)

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Mapping[str, Tensor]:
        extended = batch.extended()
        values, following = extended.split(module.values(extended["observations"]))
        rewards = self.sign * batch["rewards"]
        sums = rewards + config.gamma * following * ~batch["terminated"] - values
        ends = (batch["fragments"][:, 1] - 1).tolist()
        for row in range(len(sums) - 2, -1, -1):
            if row not in ends:
                sums[row] += self.decay(config) * sums[row + 1]
        prepared = {"targets": sums + values, "advantages": sums}
        if self.normalizes(config):
            prepared["advantages"] = (sums - sums.mean()) / sums.std()
        return prepared

    def decay(self, config: Any) -> float:
        """Of a TD error from step to step."""
        return float(config.gamma * config.gae_lambda)

    def normalizes(self, config: Any) -> bool:
        """Whether advantages are normalized."""
        return bool(config.normalize_advantage)


class Never(Gae):
    """Normalizes nothing."""

    def normalizes(self, config: Any) -> bool:
        return False


class InTheLoss(Never):
    """Normalizes where the loss is computed."""

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Loss:
        if config.normalize_advantage:
            sums = batch["advantages"]
            normalized = (sums - sums.mean()) / (sums.std() + 1e-8)
            batch = batch.with_columns({"advantages": normalized})
        return super().compute_loss_for_module(config, batch, fwd_out)


@pytest.mark.parametrize("plugin", [Gae, InTheLoss])
def test_advantages_that_are_such_sums_pass(plugin: type[Any]) -> None:
    passes("advantages_are_sums_of_td_errors", plugin)
    passes("advantages_are_normalized", plugin)


# -- columns ---------------------------------------------------------------------------------------


class OfTheWrongRow(QLearning):
    """Draws values to the targets of other rows."""

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])[:, 0]
        return Loss(((chosen - batch["targets"].roll(1)) ** 2).mean())


def test_rows_that_are_learned_from_their_neighbours_are_told() -> None:
    passes("rows_are_learned_one_by_one", QLearning)
    passes("updates_depend_on_every_column", QLearning)
    told = failure("rows_are_learned_one_by_one", OfTheWrongRow)
    assert told.looked_for == "the same update for the same rows in another order"
    assert told.found.startswith("the gradient of 'q.0.weight' differs by ")
    assert told.look_at.endswith(
        ": look for roll, shapes that broadcast, and columns of other rows"
    )
    assert passed_by("rows_are_learned_one_by_one", Gae) == (
        "its rows are ordered, or its updates are random"
    )


class Drops(QLearning):
    """Leaves values out by chance."""

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])[:, 0]
        kept = (torch.rand(batch.rows) < 0.5).to(chosen.dtype)
        return Loss((kept * (chosen - batch["targets"]) ** 2).mean())


class DropsByItsOwn(QLearning):
    """The same with the generator of the learner."""

    def compute_loss_for_module(  # type: ignore[override]
        self, learner: Any, batch: Batch, fwd_out: Mapping[str, Tensor]
    ) -> Loss:
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])[:, 0]
        kept = (torch.rand(batch.rows, generator=learner.generator()) < 0.5).to(chosen.dtype)
        return Loss((kept * (chosen - batch["targets"]) ** 2).mean())


@pytest.mark.parametrize("plugin", [Drops, DropsByItsOwn])
def test_rows_of_random_updates_are_not_compared(plugin: type[Any]) -> None:
    assert passed_by("rows_are_learned_one_by_one", plugin) == (
        "its rows are ordered, or its updates are random"
    )


class Prioritized(QLearning):
    """Draws rows of large errors more often."""

    def feed(self) -> Feed:
        return Replay(buffer_size=200, batch_size=16, learning_starts=16, prioritized=True)

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        """The loss of each row with its weight."""
        return losses * batch["weights"]

    def priority(self, errors: Tensor) -> Tensor | None:
        """Of each row."""
        return errors.abs()

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])[:, 0]
        errors = chosen - batch["targets"]
        priority = self.priority(errors.detach())
        rows = {} if priority is None else {"priority": priority}
        return Loss(self.weigh(errors**2, batch).mean(), rows=rows)


def test_weights_and_priorities_that_are_right_pass() -> None:
    passes("importance_weights_scale_the_loss", Prioritized)
    passes("priorities_grow_with_errors", Prioritized)
    assert passed_by("importance_weights_scale_the_loss", QLearning) == "its feed gives no weights"
    assert passed_by("priorities_grow_with_errors", QLearning) == (
        "its feed draws no batches by priority"
    )


# -- learning --------------------------------------------------------------------------------------


class WithMetrics(PolicyGradient):
    """Reports numbers."""

    metrics: ClassVar[dict[str, Any]] = {}

    def additional_update(self, timestep: int) -> Mapping[str, Any]:
        return self.metrics


@pytest.mark.parametrize("value", [torch.zeros(2), "b"], ids=str)
def test_metrics_that_are_no_numbers_are_told_by_name(value: Any) -> None:
    plugin = type("Mine", (WithMetrics,), {"metrics": {"a": value}, "__doc__": "Reports."})
    assert "'a'" in failure("metrics_are_finite_numbers", plugin).found
