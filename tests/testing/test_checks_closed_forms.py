"""Checks of what is learned in closed form, by a small algorithm and wrong ones of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy
import pytest
import torch
from torch import Tensor

from rlplug import Acted, ActInput, Algorithm, Batch, Module, option
from rlplug.feeds import Feed, Stream
from rlplug.testing.algorithms import PolicyGradient
from tests.faulty import failure, passed_by, passes


@attrs.frozen(kw_only=True)
class MeansConfig:
    """Options of Means."""

    strength: float = option(1.0, "Rows of reward 0 that each action begins with.")
    discount: float = option(1.0, "Of what was learned, for each row after it.")
    greed: float = option(0.1, "Share of random actions.")


class MeansModule(Module):
    """Sums of rewards and counts of each action."""

    sums: Tensor
    counts: Tensor

    def __init__(self, actions: int, config: Any) -> None:
        super().__init__()
        self.greed, self.strength = config.greed, config.strength
        self.register_buffer("sums", torch.zeros(actions, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(actions, dtype=torch.float64))

    def means(self, n: int) -> Any:
        """The same for all rows."""
        means = (self.sums / (self.counts + self.strength)).numpy()
        return numpy.broadcast_to(means, (n, len(means)))

    def best(self, act: ActInput) -> Any:
        """The best of the allowed actions."""
        means = self.means(len(act.observations))
        if act.action_mask is not None:
            means = numpy.where(numpy.asarray(act.action_mask) != 0, means, -numpy.inf)
        return means.argmax(1)

    def forward_exploration(self, act: ActInput) -> Acted:
        actions = self.best(act)
        scores = act.random.random((len(actions), len(self.sums)))
        if act.action_mask is not None:
            scores = numpy.where(numpy.asarray(act.action_mask) != 0, scores, -1.0)
        random = act.random.random(len(actions)) < self.greed
        actions = numpy.where(random, scores.argmax(1), actions)
        told = self.means(len(actions))[numpy.arange(len(actions)), actions]
        return Acted(actions, extras={"score": told})

    def forward_inference(self, act: ActInput) -> Acted:
        return Acted(self.best(act))


class Means(Algorithm):
    """The mean reward of each action, of the environments with Box observations."""

    Config: ClassVar[type[Any]] = MeansConfig
    default_env: ClassVar[str] = "CartPole-v1"
    reference: ClassVar[str] = f"{__name__}:plain_means"

    def feed(self) -> Feed:
        return Stream(steps_per_update=1, one_step_episodes=True)

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        flat = len(getattr(observation_space, "shape", None) or ()) == 1
        return (
            None
            if flat and getattr(action_space, "n", 0) == 3 and (not hasattr(observation_space, "n"))
            else "a Box and three actions"
        )

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        return MeansModule(int(action_space.n), config)

    def weights_of(self, batch: Batch) -> Tensor:
        """How often each row counts."""
        if "weights" in batch:
            return batch["weights"].double()
        return torch.ones(batch.rows, dtype=torch.float64)

    def discount_of(self, config: Any) -> float:
        """By which each row makes earlier ones count less."""
        return float(config.discount)

    def additional_update(self, module: Any, config: Any, batch: Batch) -> Mapping[str, Any]:
        rewards, weights = batch["rewards"].double(), self.weights_of(batch)
        for row, action in enumerate(batch["actions"].long().tolist()):
            kept = self.discount_of(config)
            module.sums *= kept
            module.counts *= kept
            module.sums[action] += weights[row] * rewards[row]
            module.counts[action] += weights[row]
        return {"reward": self.metric(rewards), "rows": batch.rows}

    def metric(self, rewards: Tensor) -> Tensor:
        """What is reported of rewards."""
        return rewards.mean()


DISCOUNTED: dict[str, Any] = {"variants": ({"discount": 0.9},)}


@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        ("weights_count_rows", {}),
        ("discounts_are_powers", DISCOUNTED),
        ("metrics_are_means_over_rows", {}),
        ("equals_its_reference", DISCOUNTED),
    ],
)
def test_sums_over_rows_pass(check: str, arguments: dict[str, Any]) -> None:
    passes(check, Means, **arguments)


class OnlyTheLast(Means):
    """Learns the last row of each batch."""

    def additional_update(self, module: Any, config: Any, batch: Batch) -> Mapping[str, Any]:
        last = batch.select(slice(batch.rows - 1, None))
        return super().additional_update(module, config, last)


class ScaledByRows(Means):
    """Counts rows of large batches less."""

    def weights_of(self, batch: Batch) -> Tensor:
        return super().weights_of(batch) / batch.rows


@pytest.mark.parametrize("plugin", [OnlyTheLast, ScaledByRows])
def test_batches_that_teach_something_else_in_parts_are_told(plugin: type[Any]) -> None:
    told = failure("weights_count_rows", plugin)
    assert told.looked_for == "the same from a batch and from its halves, one after the other"
    path, _, size = told.found.partition(" differs by up to ")
    assert "sums" in path or "counts" in path
    assert float(size) > 1e-4
    assert ".additional_update (" in told.look_at
    assert told.look_at.endswith("): sums over all rows of a batch, not over the first or the last")


class OtherSingleRows(Means):
    """Single rows, which have a path of their own, count twice."""

    def weights_of(self, batch: Batch) -> Tensor:
        return super().weights_of(batch) * (2.0 if batch.rows == 1 else 1.0)


def test_single_rows_that_teach_something_else_are_told() -> None:
    told = failure("weights_count_rows", OtherSingleRows)
    assert told.looked_for == "the same from a batch and from its rows, one by one"
    assert told.found.startswith("extras.score differs by up to ")


class SquaresWeights(Means):
    """Multiplies by weights twice."""

    def weights_of(self, batch: Batch) -> Tensor:
        return super().weights_of(batch) ** 2


class AtLeastOne(Means):
    """Counts rows of weight 0 as well."""

    def weights_of(self, batch: Batch) -> Tensor:
        return super().weights_of(batch).clamp(min=0.25)


class HalfWithoutWeights(Means):
    """Counts rows without weights as halves."""

    def weights_of(self, batch: Batch) -> Tensor:
        weights = super().weights_of(batch)
        return weights if "weights" in batch else 0.5 * weights


class NoWeights(Means):
    """Reads none."""

    def weights_of(self, batch: Batch) -> Tensor:
        return torch.ones(batch.rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("plugin", "what"),
    [
        (HalfWithoutWeights, "weights of 1 and no weights"),
        (SquaresWeights, "a row of weight 2 and two such rows"),
        (AtLeastOne, "a row of weight 0 and none"),
    ],
)
def test_weights_that_do_not_count_rows_are_told(plugin: type[Any], what: str) -> None:
    told = failure("weights_count_rows", plugin)
    assert told.looked_for == f"the same from {what}"
    assert " differs by up to " in told.found
    assert told.look_at.startswith(f"{plugin.__name__}.additional_update (")
    assert told.look_at.endswith("): multiply every sum over rows by the weights, once")


class DiscountsTwice(Means):
    """Discounts by the square."""

    def discount_of(self, config: Any) -> float:
        return float(config.discount) ** 2


def test_other_discounts_are_told() -> None:
    told = failure("discounts_are_powers", DiscountsTwice, **DISCOUNTED)
    assert told.looked_for == "predictions as from rows of weights 0.9ᵏ with discount = 0.9"
    assert told.found.startswith("extras.score differs by up to ")
    assert told.look_at.endswith(
        "): discount everything that was learned before, once per row, and not the penalty"
    )


class Summed(Means):
    """Reports a sum."""

    def metric(self, rewards: Tensor) -> Tensor:
        return rewards.sum()


class Counted(Means):
    """Reports counts alone."""

    def metric(self, rewards: Tensor) -> Tensor:
        return torch.tensor(float(len(rewards)))


def test_metrics_that_grow_with_rows_are_told() -> None:
    told = failure("metrics_are_means_over_rows", Summed)
    assert told.looked_for == "the same metric 'reward' for a row and for that row twice"
    once, _, twice = told.found.removesuffix(" for three rows").partition(" and ")
    ones, twos = ([float(word) for word in part.strip("[]").split(",")] for part in (once, twice))
    assert twos == pytest.approx([2 * one for one in ones])
    assert len(ones) == 3
    assert told.look_at.endswith(
        "): means over rows, also where single rows have a path of their own"
    )


@pytest.mark.parametrize(
    ("check", "plugin", "why"),
    [
        (
            "weights_count_rows",
            PolicyGradient,
            "it learns by gradients, or discounts what was learned",
        ),
        ("weights_count_rows", PolicyGradient, "it learns by gradients, or reads no weights"),
        ("weights_count_rows", NoWeights, "it learns by gradients, or reads no weights"),
        ("discounts_are_powers", Means, "it has no option 'discount', or reads no weights"),
        (
            "discounts_are_powers",
            PolicyGradient,
            "it has no option 'discount', or reads no weights",
        ),
        (
            "metrics_are_means_over_rows",
            PolicyGradient,
            "it learns by gradients, or its metrics only count",
        ),
        (
            "metrics_are_means_over_rows",
            Counted,
            "it learns by gradients, or its metrics only count",
        ),
        (
            "equals_its_reference",
            PolicyGradient,
            "it names no plain computation: reference = 'module:function'",
        ),
    ],
)
def test_why_a_check_of_closed_forms_does_not_apply(
    check: str, plugin: type[Any], why: str
) -> None:
    assert passed_by(check, plugin) == why


@pytest.mark.parametrize(
    ("check", "why"),
    [
        (
            "weights_count_rows",
            "it learns by gradients, or discounts what was learned",
        ),
        ("weights_count_rows", "it learns by gradients, or reads no weights"),
    ],
)
def test_what_discounts_may_not_be_split(check: str, why: str) -> None:
    assert passed_by(check, Means, options={"discount": 0.9}) == why


def test_rows_have_an_order_where_later_ones_count_more() -> None:
    passes("rows_are_learned_one_by_one", Means)
    assert passed_by("rows_are_learned_one_by_one", Means, options={"discount": 0.9}) == (
        "its rows are ordered, or its updates are random"
    )


# -- references ------------------------------------------------------------------------------------


class LearnsTwice(Means):
    """Learns each row twice."""

    def weights_of(self, batch: Batch) -> Tensor:
        return 2 * super().weights_of(batch)


class ActsWorst(Means):
    """Acts by the smallest mean."""

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        class Worst(MeansModule):
            def forward_inference(self, act: ActInput) -> Acted:
                means = self.means(len(act.observations))
                if act.action_mask is not None:
                    allowed = numpy.asarray(act.action_mask) != 0
                    means = numpy.where(allowed, means, numpy.inf)
                return Acted(means.argmin(1))

        return Worst(int(action_space.n), config)


class SaysNoScore(Means):
    """Gives its scores another name."""

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        class Silent(MeansModule):
            def forward_exploration(self, act: ActInput) -> Acted:
                acted = super().forward_exploration(act)
                return Acted(acted.actions, extras={"points": acted.extras["score"]})

        return Silent(int(action_space.n), config)


class OfNothing(Means):
    """Names a reference that knows nothing."""

    reference: ClassVar[str] = f"{__name__}:nothing"


REFERENCE = f"{__name__}:plain_means"


@pytest.mark.parametrize(
    ("plugin", "looked_for", "found"),
    [
        (LearnsTwice, f"score as {REFERENCE} computes it in 'box, discrete'", "], not ["),
        (ActsWorst, f"the best actions by {REFERENCE} in 'box, discrete'", "], not ["),
        (SaysNoScore, "'score' among the extras of acting", "points"),
    ],
)
def test_what_differs_from_a_reference_is_told(
    plugin: type[Any], looked_for: str, found: str
) -> None:
    told = failure("equals_its_reference", plugin)
    assert told.looked_for == looked_for
    assert found in told.found
    assert told.look_at.startswith(f"{plugin.__name__}.additional_update (")
    if plugin is ActsWorst:
        # Of eight observations: what was done, and what should have been.
        done, _, wanted = told.found.partition(", not ")
        assert done != wanted
        assert len(done.split(",")) == len(wanted.split(",")) == 8


def test_references_of_nothing_are_told() -> None:
    told = failure("equals_its_reference", OfNothing)
    assert told.looked_for == "a reference for one of the settings and environments of the kit"
    assert told.found == "it returned None for all of them"
    assert told.look_at == f"{__name__}:nothing"
