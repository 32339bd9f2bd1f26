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


class RewardsAlone(EndsAtTimeLimits):
    """Looks at no next state."""

    def ends(self, config: Any, batch: Batch) -> Tensor:
        return torch.ones_like(batch["terminated"])


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


def test_time_limits_may_end_episodes_where_an_option_asks_for_it() -> None:
    passes("truncated_steps_bootstrap", WithOption)
    passes("truncated_steps_bootstrap", PolicyGradient)
    assert passed_by("truncated_steps_bootstrap", RewardsAlone) == (
        "its updates do not depend on next observations"
    )


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
    assert told.found.startswith("'targets' of the first 12 rows, the last of them truncated, is [")
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


class WrongSign(Gae):
    """Takes rewards for costs."""

    sign: ClassVar[float] = -1.0


class ByGamma(Gae):
    """Decays by gamma alone."""

    def decay(self, config: Any) -> float:
        return float(config.gamma)


class Always(Gae):
    """Normalizes whatever is asked for."""

    def normalizes(self, config: Any) -> bool:
        return True


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


def test_advantages_that_are_other_sums_are_told() -> None:
    looked_for = (
        "advantages that grow by (gamma · lambda)^k of a reward k steps later, with gamma = 0.9 "
        "and lambda = 0.9"
    )
    told = failure("advantages_are_sums_of_td_errors", ByGamma)
    assert told.looked_for == looked_for
    found = told.found.removeprefix("for a higher reward in row ").split()
    assert 0 < int(found[0]) < 64
    assert " ".join(found[1:6]) == "they differ from that by"
    assert 0.01 < float(found[6]) < 1
    assert told.look_at.startswith("ByGamma.prepare_batch (")
    assert told.look_at.endswith("): from which row to which the sums go, and what decays them")
    told = failure("advantages_are_sums_of_td_errors", WrongSign)
    assert told.looked_for == looked_for
    assert told.found.endswith(" they are no higher")


@pytest.mark.parametrize("plugin", [Gae, InTheLoss])
def test_advantages_that_are_such_sums_pass(plugin: type[Any]) -> None:
    passes("advantages_are_sums_of_td_errors", plugin)
    passes("advantages_are_normalized", plugin)


@pytest.mark.parametrize(
    ("plugin", "looked_for"),
    [
        (Never, "normalized advantages, as normalize_advantage is True"),
        (
            Always,
            "advantages as they are, as normalize_advantage is False with normalize_advantage = "
            "False",
        ),
    ],
)
def test_advantages_of_another_size_than_asked_for_are_told(
    plugin: type[Any], looked_for: str
) -> None:
    told = failure("advantages_are_normalized", plugin)
    assert told.looked_for == looked_for
    assert told.found.startswith("prepare_batch gives a mean of ")
    assert told.found.endswith(" of their size for advantages 3 · A + 2")
    assert told.look_at.startswith(f"{plugin.__name__}.prepare_batch (")
    assert told.look_at.endswith("): (advantages - mean) / standard deviation, in one of the two")


def test_what_prepares_no_such_advantages_is_passed_by() -> None:
    assert passed_by("advantages_are_sums_of_td_errors", PolicyGradient) == (
        "it has no option gae_lambda, or prepares no advantages"
    )
    assert passed_by("advantages_are_normalized", PolicyGradient) == (
        "it has no option normalize_advantage, or prepares no advantages"
    )


# -- columns ---------------------------------------------------------------------------------------


class OfTheWrongRow(QLearning):
    """Draws values to the targets of other rows."""

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])[:, 0]
        return Loss(((chosen - batch["targets"].roll(1)) ** 2).mean())


class Broadcasts(QLearning):
    """Draws every value to every target."""

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])
        return Loss(((chosen - batch["targets"]) ** 2).mean())


class AllActions(QLearning):
    """Learns the same of all actions."""

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        return Loss(((fwd_out["q_values"] - batch["targets"][:, None]) ** 2).mean())


class NoTermination(QLearning):
    """Never ends returns."""

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Mapping[str, Tensor]:
        never = torch.zeros_like(batch["terminated"])
        return super().prepare_batch(module, config, batch.with_columns({"terminated": never}))


@pytest.mark.parametrize(
    ("plugin", "name", "hint"),
    [
        (
            Broadcasts,
            "rewards",
            "rewards must belong to their rows; (n, 1) and (n,) broadcast to (n, n)",
        ),
        (AllActions, "actions", "what the action was matters"),
        (NoTermination, "terminated", 'end returns where batch["terminated"] is set'),
    ],
)
def test_columns_that_make_no_difference_are_told(plugin: type[Any], name: str, hint: str) -> None:
    told = failure("updates_depend_on_every_column", plugin)
    assert (told.looked_for, told.found) == (f"another update for other {name!r}", "the same one")
    assert told.look_at.startswith(f"{plugin.__name__}.prepare_batch (")
    assert " or " in told.look_at
    assert told.look_at.endswith(f"): {hint}")


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


class SeveralSteps(QLearning):
    """Learns returns of three steps, of which the last ones of an episode are shorter."""

    def feed(self) -> Feed:
        return Replay(
            buffer_size=200, batch_size=16, learning_starts=16, n_step=3, gamma=self.config.gamma
        )

    def discounts(self, config: Any, batch: Batch) -> Any:
        """Of the next values."""
        return batch["discounts"]

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Mapping[str, Tensor]:
        values = module.target(module.floats(batch["next_observations"])).max(1).values
        future = self.discounts(config, batch) * values * ~batch["terminated"]
        return {"targets": batch["rewards"] + future}


class DiscountsByOneStep(SeveralSteps):
    """Discounts as if it were one step."""

    def discounts(self, config: Any, batch: Batch) -> Any:
        return config.gamma


def test_discounts_of_several_steps_that_are_not_read_are_told() -> None:
    passes("updates_depend_on_every_column", SeveralSteps)
    told = failure("updates_depend_on_every_column", DiscountsByOneStep)
    assert told.looked_for == "another update for other 'discounts'"
    assert told.look_at.endswith(
        '): rows span several steps: discount with batch["discounts"], not gamma'
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


class Unweighted(Prioritized):
    """Reads no weights."""

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        return losses


class OfOtherRows(Prioritized):
    """Has the weights of other rows."""

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        return losses * batch["weights"].roll(1)


class Inverse(Prioritized):
    """Prefers what it knows."""

    def priority(self, errors: Tensor) -> Tensor | None:
        return 1 / (0.1 + errors.abs())


class Signed(Prioritized):
    """Forgets the absolute value."""

    def priority(self, errors: Tensor) -> Tensor | None:
        return errors


class Without(Prioritized):
    """Gives none."""

    def priority(self, errors: Tensor) -> Tensor | None:
        return None


@pytest.mark.parametrize(
    ("check", "plugin", "looked_for", "found", "hint"),
    [
        (
            "importance_weights_scale_the_loss",
            Unweighted,
            "gradients twice as large for weights twice as large",
            "others",
            ': multiply each row\'s loss by batch["weights"], then take the mean',
        ),
        (
            "importance_weights_scale_the_loss",
            OfOtherRows,
            "an update that ignores a row of weight 0",
            "it depends on the row's reward: the gradient of ",
            ": weights of other rows",
        ),
        (
            "priorities_grow_with_errors",
            Inverse,
            "higher priorities for rewards that are further from what was predicted",
            "a mean of ",
            ": the absolute value of the error, not its inverse",
        ),
        (
            "priorities_grow_with_errors",
            Signed,
            "priorities that are not negative",
            "-",
            ": the absolute value of the error",
        ),
        ("priorities_grow_with_errors", Without, "one priority per row", "none", "…})"),
    ],
)
def test_weights_and_priorities_that_are_wrong_are_told(
    check: str, plugin: type[Any], looked_for: str, found: str, hint: str
) -> None:
    told = failure(check, plugin)
    assert told.looked_for == looked_for
    assert told.found.startswith(found)
    assert told.look_at.startswith(
        (f"{plugin.__name__}.compute_loss_for_module (", "Prioritized.compute_loss_for_module (")
    )
    assert told.look_at.endswith(hint)


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


@pytest.mark.parametrize(
    ("metrics", "looked_for", "found"),
    [
        ({"a": float("inf")}, "finite metrics", "default: a is inf in update 1"),
        ({"A": 1.0}, "metric names in lower case without spaces", "'A'"),
        ({"a b": 1.0}, "metric names in lower case without spaces", "'a b'"),
    ],
)
def test_metrics_that_are_none_are_told(
    metrics: dict[str, Any], looked_for: str, found: str
) -> None:
    plugin = type("Mine", (WithMetrics,), {"metrics": metrics, "__doc__": "Reports."})
    told = failure("metrics_are_finite_numbers", plugin)
    assert (told.looked_for, told.found) == (looked_for, found)
    assert told.look_at.startswith("Mine.compute_loss_for_module (")


@pytest.mark.parametrize("value", [torch.zeros(2), "b"], ids=str)
def test_metrics_that_are_no_numbers_are_told_by_name(value: Any) -> None:
    plugin = type("Mine", (WithMetrics,), {"metrics": {"a": value}, "__doc__": "Reports."})
    assert "'a'" in failure("metrics_are_finite_numbers", plugin).found


class Sometimes(PolicyGradient):
    """Reports more later."""

    def additional_update(self, timestep: int) -> Mapping[str, Any]:
        return {"late": 1.0} if timestep > 600 else {}


def test_metrics_that_come_late_are_told() -> None:
    told = failure("metrics_are_finite_numbers", Sometimes)
    assert told.looked_for == "the same metrics in early and late updates"
    assert told.found == "only sometimes: late"
    assert told.look_at.startswith("Sometimes.compute_loss_for_module (")
