"""What is given by hand and cannot be meant is refused with a reason, and changes nothing."""

from __future__ import annotations

import re
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_linucb import Layout, LinTSConfig, LinTSModule, LinUCBConfig, LinUCBModule
from rlplug_linucb.neural import NeuralLinUCBModule

from rlplug.bandits import BanditBatch
from rlplug.errors import RequestError, RlplugError, RunFailedError

NAMES = ("x", "y", "z")
RANDOM = numpy.random.default_rng(0)
PLAIN = Layout(num_arms=3, context_dim=2)
FEATURED = Layout(num_arms=3, context_dim=2, arm_dim=2)
WITH_IDS = Layout(num_arms=3, context_dim=2, max_arms=20)
PARTS = spaces.Dict(context=spaces.Box(-1, 1, (2,)), arms=spaces.Box(-1, 1, (3, 2)))
X = numpy.ones((2, 2))


def parts(contexts: int, rows: int) -> dict[str, Any]:
    shapes = {"context": (contexts, 2), "arms": (rows, 3, 2)}
    return {name: numpy.ones(shape, numpy.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("layout", "other", "model"),
    [
        (
            Layout(num_arms=3, context_dim=2, arm_names=NAMES),
            Layout(num_arms=3, context_dim=5, arm_names=NAMES[::-1]),
            "auto",
        ),
        (
            Layout(num_arms=2, arm_dim=2, arm_names=("a", "b")),
            Layout(num_arms=3, arm_dim=4, arm_names=NAMES),
            "auto",
        ),
        (
            Layout(num_arms=3, context_dim=2, arm_names=NAMES),
            Layout(num_arms=2, context_dim=3, arm_names=("a", "b")),
            "joint",
        ),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(
    layout: Layout, other: Layout, model: str
) -> None:
    config = LinUCBConfig(model=model)  # type: ignore[arg-type] # one of its names
    one = LinUCBModule(layout, config)
    before = {name: value.clone() for name, value in one.state_dict().items()}
    with pytest.raises(RequestError, match=r"does not fit: \S+ has the shape .*, the module's has"):
        one.load_state_dict(LinUCBModule(other, config).state_dict())
    assert one.layout == layout
    assert all(value.equal(before[name]) for name, value in one.state_dict().items())


def test_names_are_left_where_a_state_lacks_regressions() -> None:
    one = LinUCBModule(Layout(num_arms=3, context_dim=2, arm_names=NAMES))
    state = LinUCBModule(Layout(num_arms=3, context_dim=2, arm_names=NAMES[::-1])).state_dict()
    del state["regressions.sums"]
    with pytest.raises(RequestError, match=r"does not fit: it lacks regressions\.sums"):
        one.load_state_dict(state)
    assert one.layout.arm_names == NAMES


@pytest.mark.parametrize(
    ("module", "other", "said"),
    [
        (
            LinUCBModule(PLAIN),
            LinUCBModule(FEATURED, LinUCBConfig(model="hybrid", alpha=7.0)),
            "it lacks regressions.age, regressions.counts, regressions.recent and 5 more",
        ),
        (
            LinUCBModule(PLAIN),
            LinTSModule(PLAIN),
            "it lacks alpha, regressions.age, regressions.counts and 6 more",
        ),
        (LinTSModule(PLAIN), LinUCBModule(PLAIN), "it lacks bandit.alpha, bandit.regressions.age"),
        (
            LinUCBModule(PLAIN),
            LinUCBModule(PLAIN, LinUCBConfig(discount=0.9, squared_discount=True)),
            "it has regressions.squared_sums, regressions.widened, which the module lacks",
        ),
    ],
)
def test_a_state_of_another_kind_changes_nothing(module: Any, other: Any, said: str) -> None:
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(RequestError, match=f"does not fit: {re.escape(said)}"):
        module.load_state_dict(other.state_dict())
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: LinUCBModule(PLAIN, LinTSConfig()), "LinUCBConfig"),
        (lambda: LinTSModule(PLAIN, LinUCBConfig()), "LinTSConfig"),
        (lambda: NeuralLinUCBModule(PARTS, 3, LinUCBConfig()), "NeuralLinUCBConfig"),
        (lambda: LinUCBModule(PLAIN, {"alpha": 2.0}), "LinUCBConfig"),
    ],
)
def test_options_of_another_kind_are_named(make: Any, kind: str) -> None:
    with pytest.raises(RequestError, match=f"of this module must be a {kind}, found "):
        make()


@pytest.mark.parametrize("contexts", [1, 3])
def test_a_neural_bandit_refuses_parts_that_differ_in_their_rows(contexts: int) -> None:
    neural = NeuralLinUCBModule(PARTS, 3)
    with pytest.raises(RunFailedError, match=f"differ in their rows: context has {contexts}, arms"):
        neural.score(parts(contexts, 4))
    assert neural.score(parts(4, 4)).ucb.shape == (4, 3)


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (numpy.array([[1, "a"]], object), "context must be real numbers, found an array of object"),
        (numpy.array([[1, 2j]]), "context must be real numbers, found an array of complex128"),
        ({"context": [[1, 2], [1]]}, "the rows of context differ in their lengths"),
        ({"context": [["a", "b"]]}, "context must be real numbers, found an array of <U1"),
        ([[1, 2]], "a bandit reads an array or a mapping, got list"),
        (numpy.array(1), r"context must have the shape \(n, 2\), found \(\)"),
    ],
)
def test_contexts_that_are_no_rows_of_numbers_are_refused(context: Any, said: str) -> None:
    for one in (LinUCBModule(PLAIN), NeuralLinUCBModule(spaces.Box(-1, 1, (2,)), 3)):
        if isinstance(context, numpy.ndarray) and context.dtype.kind in "cO":
            context = context if isinstance(one, LinUCBModule) else {"context": context}
        with pytest.raises(RunFailedError, match=said):
            one.choose(context, RANDOM)


def test_lists_in_a_mapping_are_contexts() -> None:
    for one in (LinUCBModule(PLAIN), NeuralLinUCBModule(spaces.Box(-1, 1, (2,)), 3)):
        assert one.score({"context": [[1, 2.0]]}).ucb.shape == (1, 3)
    assert LinUCBModule(PLAIN).choose(numpy.array([[1, 2]], object), RANDOM).shape == (1,)


def test_numbers_in_place_of_rows_are_refused_without_a_context() -> None:
    one = LinUCBModule(Layout(num_arms=3))
    with pytest.raises(RunFailedError, match=r"context must have the shape \(n, 0\), found \(\)"):
        one.choose(numpy.array(3), RANDOM)
    with pytest.raises(RunFailedError, match=r"action_mask must have the shape \(n, 3\), found"):
        one.choose(None, RANDOM, numpy.array(1))


def test_a_seed_is_no_generator() -> None:
    random: Any = 0
    for choose in (
        LinUCBModule(PLAIN).choose,
        LinTSModule(PLAIN).choose,
        LinTSModule(PLAIN).score,
        NeuralLinUCBModule(spaces.Box(-1, 1, (2,)), 3).choose,
    ):
        with pytest.raises(RequestError, match="drawn by a generator, found 0"):
            choose(X.astype(numpy.float32), random)


@pytest.mark.parametrize("values", [[1j, 1], torch.tensor([1j, 1])])
def test_complex_numbers_are_not_learned(values: Any) -> None:
    one = LinUCBModule(PLAIN)
    with pytest.raises(RunFailedError, match="rewards must be real numbers"):
        one.update(X, [0, 1], values)
    with pytest.raises(RunFailedError, match="weights must be real numbers"):
        one.update(X, [0, 1], [1, 1], values)
    with pytest.raises(RunFailedError, match="y must be real numbers"):
        one.update_params(X, values, arms=[0, 1])
    with pytest.raises(RunFailedError, match="x must be real numbers"):
        one.update_params(X * 1j, [1, 1], arms=[0, 1])
    assert not one.A.any()


def test_rows_of_the_regression_may_be_lists() -> None:
    one, two = LinUCBModule(PLAIN), LinUCBModule(PLAIN)
    one.update_params([[1, 2]], [1.0], arms=[0])
    two.update([[1, 2]] @ numpy.eye(2), [0], [1.0])
    assert one.A.tolist() == two.A.tolist()


def test_what_is_learned_is_a_bandit_batch() -> None:
    batch: Any = {"context": X}
    with pytest.raises(RequestError, match="learn takes a BanditBatch, found a dict"):
        LinUCBModule(PLAIN).learn(batch)


@pytest.mark.parametrize("gamma", ["x", 1.5, -0.1, float("nan"), True])
def test_data_are_discounted_by_numbers_from_0_to_1(gamma: Any) -> None:
    with pytest.raises(RunFailedError, match="data cannot be discounted by"):
        LinUCBModule(PLAIN).discount_(gamma)


@pytest.mark.parametrize("layout", [FEATURED, WITH_IDS])
@pytest.mark.parametrize("model", ["auto", "hybrid"])
def test_without_rows_there_are_no_scores(layout: Layout, model: Any) -> None:
    one = LinUCBModule(layout, LinUCBConfig(model=model))
    seen: dict[str, Any] = parts(0, 0)
    if layout is WITH_IDS:
        seen = {"context": seen["context"], "arm_ids": numpy.zeros((0, 3), int)}
    assert [score.shape for score in one.score(seen)] == [(0, 3)] * 3
    assert one.choose(seen, RANDOM).shape == (0,)


def test_without_rows_a_neural_bandit_has_no_scores() -> None:
    assert NeuralLinUCBModule(PARTS, 3).score(parts(0, 0)).ucb.shape == (0, 3)
    fixed = NeuralLinUCBModule(spaces.Box(-1, 1, (3,)), 4)
    assert fixed.score(numpy.ones((0, 3), numpy.float32)).ucb.shape == (0, 4)
    assert fixed.choose(torch.ones(0, 3), RANDOM).shape == (0,)


@pytest.mark.parametrize(
    "sizes",
    [{"num_arms": 2.5}, {"num_arms": "3"}, {"num_arms": 1}, {"num_arms": 3, "context_dim": -2}],
)
def test_sizes_of_a_layout_that_are_none_are_refused(sizes: Any) -> None:
    name, value = list(sizes.items())[-1]
    said = f"{name} of a Layout must be a whole number from . on, found {value!r}"
    with pytest.raises(RequestError, match=said):
        Layout(**sizes)


def test_a_module_is_made_from_a_layout_and_a_config() -> None:
    wrong: Any = 3
    for kind in (LinUCBModule, LinTSModule):
        with pytest.raises(RequestError, match="is made from a Layout, found 3"):
            kind(wrong)
    options: Any = {"alpha": 1}
    with pytest.raises(RequestError, match=r"must be a LinUCBConfig, found \{'alpha': 1\}"):
        LinUCBModule(PLAIN, options)


def test_a_present_arm_with_an_id_that_none_has_is_not_chosen() -> None:
    one = LinUCBModule(WITH_IDS)
    ids = numpy.array([[0, 1, 2], [-1, -1, -1]])
    with pytest.raises(RlplugError, match="the chosen arm of row 1 has the id -1"):
        one.choose({"context": X, "arm_ids": ids}, RANDOM)
    mask = numpy.array([[0, 1, 1]])
    seen = {"context": X[:1], "arm_ids": numpy.array([[-1, 1, 2]]), "action_mask": mask}
    assert one.choose(seen, RANDOM)[0] in (1, 2)


def test_a_bandit_batch_may_be_made_of_lists_and_tensors() -> None:
    batch: Any = {"context": [[1, 2]], "actions": torch.tensor([0]), "rewards": [1.0]}
    made = BanditBatch(**batch)
    assert isinstance(made.context, numpy.ndarray)
    assert made.label is made.rewards
    with pytest.raises(RequestError, match="column 'context' is no array"):
        BanditBatch(**{**batch, "context": [[1, 2], [1]]})
