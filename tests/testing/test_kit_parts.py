"""Parts of the kit by themselves: what a check says, and what a conformance class passes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces

from rlplug import Acted, ActInput
from rlplug.testing import AddOnConformance, AlgorithmConformance, CheckFailed, Subject
from rlplug.testing.algorithms import PolicyGradient
from rlplug.testing.algorithms.arm_means import ArmMeansModule
from rlplug.testing.algorithms.policy_gradient import PolicyGradientModule
from rlplug.testing.checks import check_named
from rlplug.testing.checks.distributions import DRAWS, _mismatch
from rlplug.testing.comparison import (
    cloned,
    digest,
    first_difference,
    largest_difference,
    leaves_of,
    require_close,
    require_equal,
)
from rlplug.testing.conformance import _subject_of

# -- comparisons -----------------------------------------------------------------------------------


def test_the_first_difference_of_two_trees_is_told_with_its_path() -> None:
    tree: dict[str, Any] = {"a": [1, {"b": numpy.arange(3.0)}], "c": torch.tensor([True, False])}
    assert dict(leaves_of(tree)).keys() == {"a[0]", "a[1].b", "c"}
    assert first_difference(tree, cloned(tree)) is None

    def other(value: Any) -> str | None:
        return first_difference(tree, {**tree, "a": [1, {"b": value}]})

    assert other(numpy.array([0.0, 5.0, 7.0])) == "a[1].b: 2 of 3 values differ, the first 1 and 5"
    assert other(numpy.arange(4.0)) == "a[1].b is float64(3,) and float64(4,)"
    assert other(numpy.arange(3, dtype=numpy.float32)) == "a[1].b is float64(3,) and float32(3,)"
    assert other(2.0) == "a[1].b is ndarray and float"
    changed = {**tree, "c": torch.tensor([True, True])}
    assert first_difference(tree, changed) == "c: [True, False] and [True, True]"
    assert first_difference({"c": torch.ones(4, dtype=torch.bool)}, {"c": torch.zeros(4) > 1}) == (
        f"c: {[True] * 4} and {[False] * 4}"
    )
    assert first_difference({"c": torch.ones(5, dtype=torch.bool)}, {"c": torch.zeros(5) > 1}) == (
        "c: values differ"
    )
    assert first_difference({"x": 1}, {"x": 1, "y": 2}) == "y is in only one of them"
    assert first_difference({"x": 1, "y": 2}, {"x": 1}) == "y is in only one of them"
    assert first_difference({"x": 1}, {"x": 2}) == "x is 1 and 2"
    assert first_difference({"x": float("nan")}, {"x": float("nan")}) is None
    # Bit for bit: 0 and -0 differ, though they are equal.
    assert first_difference([numpy.zeros(2)], [-numpy.zeros(2)]) == (
        "[0]: 0 of 2 values differ, the first 0 and -0"
    )


def test_a_comparison_that_fails_says_what_was_looked_for_and_where() -> None:
    with pytest.raises(CheckFailed) as raised:
        require_equal({"x": 1}, {"x": 2}, "equal ones", "there", found="moved: ")
    told = raised.value
    assert (told.looked_for, told.found, told.look_at) == (
        "equal ones",
        "moved: x is 1 and 2",
        "there",
    )
    require_equal({"x": 1}, {"x": 1}, "equal ones", "there")
    one, near = {"x": numpy.array([1.0, -4.0])}, {"x": numpy.array([1.0, -4.2])}
    path, error = largest_difference(one, near)
    assert (path, round(error, 9)) == ("x", 0.05)
    require_close(one, near, 0.06, "close ones", "there")
    with pytest.raises(CheckFailed) as raised:
        require_close(one, near, 0.04, "close ones", "there")
    told = raised.value
    assert (told.looked_for, told.look_at) == ("close ones", "there")
    assert told.found == "x differs by 5.0% of its size"
    # Tiny numbers are compared with a thousandth.
    assert largest_difference([numpy.zeros(1)], [numpy.full(1, 1e-6)])[1] == pytest.approx(1e-3)


def test_digests_tell_trees_apart() -> None:
    trees = [
        {"x": numpy.zeros(2)},
        {"y": numpy.zeros(2)},
        {"x": numpy.zeros(2, numpy.float32)},
        {"x": numpy.zeros((2, 1))},
        {"x": numpy.ones(2)},
        {"x": 0},
        {"x": "0"},
    ]
    assert len({digest(tree) for tree in trees}) == len(trees)
    assert digest({"x": torch.zeros(2, dtype=torch.float64)}) == digest(trees[0])


def test_copies_of_trees_share_no_tensors() -> None:
    tree: dict[str, Any] = {"a": [torch.ones(1)], "b": (torch.ones(1, requires_grad=True), 3)}
    copied = cloned(tree)
    copied["a"][0] += 1
    assert (tree["a"][0].tolist(), copied["b"][1]) == ([1.0], 3)
    assert isinstance(copied["b"], tuple)
    assert not copied["b"][0].requires_grad


# -- actions and their log-probabilities -----------------------------------------------------------


def drawn(shares: Mapping[int, int], probabilities: Mapping[int, Any]) -> str:
    """What is said of so many draws of each action, and the probabilities that are told."""
    actions = numpy.concatenate([numpy.full(n, action) for action, n in shares.items()])
    told = numpy.concatenate(
        [numpy.broadcast_to(probabilities[action], n) for action, n in shares.items()]
    )
    assert len(actions) == DRAWS
    return _mismatch(spaces.Discrete(9), actions, numpy.log(told)[:, None])


def test_draws_may_differ_from_their_probabilities_by_chance_alone() -> None:
    """Of 4000 draws at 1/2 the share has a deviation of 0.8 %: 5 of them and 0.2 % are chance."""
    assert drawn({0: 2000, 1: 2000}, {0: 0.5, 1: 0.5}) == ""
    assert drawn({0: 2160, 1: 1840}, {0: 0.5, 1: 0.5}) == ""
    assert drawn({0: 2168, 1: 1832}, {0: 0.5, 1: 0.5}) == (
        "action [0] in 54.2% of 4,000 draws, by its log-probability 50.0%"
    )
    assert drawn({0: 1832, 1: 2168}, {0: 0.5, 1: 0.5}).startswith("action [0] in 45.8%")
    # Rare ones: a deviation of 0.016 % at least.
    assert drawn({0: 3989, 1: 11}, {0: 0.999, 1: 1e-6}) == ""
    assert drawn({0: 3988, 1: 12}, {0: 0.999, 1: 1e-6}).startswith("action [1] in 0.3%")
    # Two that are both said to be certain, or nearly.
    assert drawn({0: 4000}, {0: 1.0}) == ""
    assert drawn({0: 2000, 1: 2000}, {0: 0.52, 1: 0.52}) == "probabilities that add up to 1.04"


def test_estimates_may_be_off_by_as_much_as_they_differ() -> None:
    """Half of the rows of action 0 are told 0.4, the others 0.6: a deviation of 0.1."""
    told = numpy.resize([0.4, 0.6], 2480)
    assert drawn({0: 2480, 1: 1520}, {0: told, 1: 0.38}) == ""
    shares = {0: 2640, 1: 1360}
    found = drawn(shares, {0: numpy.resize([0.4, 0.6], 2640), 1: 0.34})
    assert found.startswith("action [0] in 66.0% of 4,000 draws, by its log-probability 50.0%")


def test_log_probabilities_are_one_finite_number_per_row() -> None:
    zeros = numpy.zeros(DRAWS, int)
    assert _mismatch(spaces.Discrete(2), zeros, numpy.zeros((DRAWS, 2))) == (
        f"log-probabilities of shape ({DRAWS}, 2): one number per row is needed"
    )
    for wrong in (numpy.nan, numpy.inf, -numpy.inf):
        given = numpy.zeros((DRAWS, 1))
        given[7] = wrong
        assert _mismatch(spaces.Discrete(2), zeros, given) == (
            "log-probabilities that are not finite"
        )


def test_a_density_is_integrated_where_actions_are_one_number() -> None:
    """Draws of a standard normal distribution, its density, and those of wider ones."""
    random = numpy.random.default_rng(0)
    actions = random.standard_normal((DRAWS, 1))
    log_density = -0.5 * actions**2 - 0.5 * numpy.log(2 * numpy.pi)
    one = spaces.Box(-9.0, 9.0, (1,))
    assert _mismatch(one, actions, log_density) == ""
    wider = -0.5 * (actions / 2) ** 2
    told = _mismatch(one, actions, wider)
    assert told.startswith("a density whose integral is off by 0.1")
    assert told.endswith("from what 4,000 draws are distributed like")
    # A factor is no matter of the shape, and of several numbers nothing is known.
    assert _mismatch(one, actions, log_density + 1.0) == ""
    assert _mismatch(spaces.Box(-9.0, 9.0, (2,)), actions, wider) == ""
    assert _mismatch(one, actions, numpy.full((DRAWS, 1), -1e4)) == "a density of 0"


# -- acting ----------------------------------------------------------------------------------------


class MovingModule(PolicyGradientModule):
    """Changes a bias whenever it acts."""

    def forward_inference(self, act: ActInput) -> Acted:
        with torch.no_grad():
            next(self.critic.parameters()).add_(1.0)
        return super().forward_inference(act)


class WritingModule(PolicyGradientModule):
    """Writes into what it observes."""

    def forward_inference(self, act: ActInput) -> Acted:
        act.observations[...] = 0
        return super().forward_inference(act)


class CountingModule(PolicyGradientModule):
    """Counts how often it acted."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.acted = [0]

    def forward_inference(self, act: ActInput) -> Acted:
        self.acted[0] += 1
        return super().forward_inference(act)


class SwitchingModule(PolicyGradientModule):
    """Leaves its training mode."""

    def forward_inference(self, act: ActInput) -> Acted:
        self.train(not self.training)
        return super().forward_inference(act)


class DrawingModule(PolicyGradientModule):
    """Draws from a generator that all share."""

    def forward_inference(self, act: ActInput) -> Acted:
        torch.rand(1)
        return super().forward_inference(act)


@pytest.mark.parametrize(
    ("kind", "looked_for", "found"),
    [
        (MovingModule, "unchanged weights and buffers", "moved: critic.0.weight: 128 of 128"),
        (WritingModule, "observations left as they were", "changed: "),
        (CountingModule, "unchanged attributes", "changed: acted[0] is "),
        (SwitchingModule, "the same training mode and grad mode", "one of them changed"),
        (DrawingModule, "draws from act.random, and from no global generator", "torch"),
    ],
)
def test_what_acting_changes_is_told(kind: type[Any], looked_for: str, found: str) -> None:
    class Changing(PolicyGradient):
        def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
            inputs, actions = spaces.flatdim(observation_space), spaces.flatdim(action_space)
            return kind(inputs, actions, config.width)

    with pytest.raises(CheckFailed) as raised:
        check_named("acting_changes_nothing")(Subject.of(Changing))
    assert raised.value.looked_for == looked_for
    assert raised.value.found.startswith(found)
    assert raised.value.look_at.startswith(f"{kind.__name__}.forward_inference (")


# -- conformance classes ---------------------------------------------------------------------------


def test_a_conformance_class_passes_on_all_that_it_says() -> None:
    def environment() -> gymnasium.Env[Any, Any]:
        return gymnasium.make("CartPole-v1")

    def subject(base: type[Any], **said: Any) -> Subject:
        made: Any = type("Of", (base,), said)
        assert made.__test__
        return _subject_of(made)

    found = subject(
        AlgorithmConformance,
        name="linucb",
        options={"alpha": 2.0},
        variants=({"alpha": 3.0},),
        environment=staticmethod(environment),
    )
    assert found.found.name == "linucb"
    assert (found.options, found.variants) == ({"alpha": 2.0}, ({"alpha": 3.0},))
    assert found.environment is environment
    found = subject(AddOnConformance, name="ema", neutral={"decay": 0.5})
    assert (found.found.name, found.neutral) == ("ema", {"decay": 0.5})
    assert (found.environment, found.options) == (None, {})
    assert subject(AlgorithmConformance, plugin=PolicyGradient).kind is PolicyGradient
    # Pytest does not collect what says nothing.
    assert not AlgorithmConformance.__test__
    assert not type("Of", (AddOnConformance,), {}).__test__  # type: ignore[attr-defined]


def test_actions_of_the_policy_gradient_are_drawn_from_its_probabilities() -> None:
    module = PolicyGradientModule(2, 3, width=4)
    with torch.no_grad():
        module.actor[2].weight.zero_()
        module.actor[2].bias.copy_(torch.tensor([0.1, 0.3, 0.6]).log())
    act = ActInput(numpy.zeros((6000, 2), numpy.float32), random=numpy.random.default_rng(0))
    shares = numpy.bincount(module.forward_exploration(act).actions, minlength=3) / 6000
    assert shares == pytest.approx([0.1, 0.3, 0.6], abs=0.02)
    masked = ActInput(
        act.observations, action_mask=numpy.array([[1, 0, 1]] * 6000), random=act.random
    )
    shares = numpy.bincount(module.forward_exploration(masked).actions, minlength=3) / 6000
    assert shares == pytest.approx([1 / 7, 0, 6 / 7], abs=0.02)


def test_the_arm_of_the_highest_mean_is_that_among_the_allowed() -> None:
    module = ArmMeansModule(3, epsilon=0.0)
    module.counts.copy_(torch.tensor([2.0, 1.0, 0.0]))
    module.sums.copy_(torch.tensor([-1.0, -3.0, 0.0]))
    assert module.greedy(2, None).tolist() == [2, 2]
    masks = [[1, 1, 0], [0, 1, 0], [0, 1, 1], [1, 0, 0]]
    assert module.greedy(4, masks).tolist() == [0, 1, 2, 0]
