"""The module alone: it chooses, learns and is saved without anything around it."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_linucb import Layout, LinTSConfig, LinTSModule, LinUCBConfig, LinUCBModule
from rlplug_linucb.linucb import RidgeRegressions

from rlplug import ActInput, build_learner
from rlplug.batch.nested import tree_map
from rlplug.errors import RunFailedError

FIXED = Layout(num_arms=4, context_dim=3)
FEATURED = Layout(num_arms=4, context_dim=3, arm_dim=2)
ALONE = Layout(num_arms=4, arm_dim=2)
CHOSEN = {"actions": numpy.array([1]), "rewards": numpy.ones(1), "weights": numpy.ones(1)}


def module(layout: Layout = FIXED, **options: Any) -> LinUCBModule:
    return LinUCBModule(layout, LinUCBConfig(**options))


def taught(layout: Layout = FIXED, **options: Any) -> LinUCBModule:
    """A module that has learned 30 rows of chance."""
    one = module(layout, **options)
    random = numpy.random.default_rng(3)
    seen = observations(layout, 30)
    one.update(seen, random.integers(0, 4, 30), random.standard_normal(30))
    return one


def observations(layout: Layout, count: int, seed: int = 0) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    parts = {"context": random.standard_normal((count, 3))} if layout.context_dim else {}
    if layout.arm_dim:
        parts["arms"] = random.standard_normal((count, 4, layout.arm_dim))
    return parts


def act(seen: Any, mask: Any = None, seed: int = 0) -> ActInput:
    return ActInput(seen, action_mask=mask, random=numpy.random.default_rng(seed))


@pytest.mark.parametrize("count", [1, 50])
def test_the_arm_of_the_highest_bound_is_chosen_and_its_scores_are_told(count: int) -> None:
    one, seen = taught(alpha=2.0), observations(FIXED, count, seed=1)
    acted, scores = one.forward_exploration(act(seen)), one.score(seen)
    assert acted.actions.tolist() == scores.ucb.argmax(1).tolist()
    rows = numpy.arange(count)
    assert acted.extras["ucb"] == pytest.approx(scores.ucb[rows, acted.actions])
    assert acted.extras["pred_label"] == pytest.approx(scores.pred_label[rows, acted.actions])
    assert acted.extras["pred_sigma"] == pytest.approx(scores.pred_sigma[rows, acted.actions])
    assert scores.ucb == pytest.approx(scores.pred_label + 2.0 * scores.pred_sigma)


def test_inference_is_greedy_and_repeats_itself() -> None:
    one, seen = taught(alpha=50.0), observations(FIXED, 40, seed=1)
    first = one.forward_inference(act(seen, seed=1)).actions
    assert first.tolist() == one.score(seen).pred_label.argmax(1).tolist()
    assert first.tolist() == one.forward_inference(act(seen, seed=2)).actions.tolist()
    assert first.tolist() != one.forward_exploration(act(seen)).actions.tolist()


@pytest.mark.parametrize("batch", [1, 400])
def test_arms_that_are_equally_good_are_chosen_equally_often(batch: int) -> None:
    one, random = module(), numpy.random.default_rng(0)
    counts = numpy.zeros(4)
    for _ in range(4_000 // batch):
        counts += numpy.bincount(one.choose(numpy.ones((batch, 3)), random), minlength=4)
    # Four standard deviations of a fair draw are 110.
    assert abs(counts - 1_000).max() < 110


@pytest.mark.parametrize("layout", [FIXED, FEATURED, ALONE])
@pytest.mark.parametrize("count", [1, 20])
def test_choose_makes_the_choices_of_exploration(layout: Layout, count: int) -> None:
    for one in (taught(layout), module(layout)):
        seen, random = observations(layout, count), numpy.random.default_rng(4)
        acted = one.forward_exploration(act(seen, seed=4))
        assert one.choose(seen, random).tolist() == acted.actions.tolist()


@pytest.mark.parametrize("layout", [FIXED, ALONE])
def test_an_array_is_read_like_the_mapping_it_stands_for(layout: Layout) -> None:
    one, two = taught(layout), taught(layout)
    seen = observations(layout, 1)
    (array,) = seen.values()
    assert one.score(array).ucb.tolist() == two.score(seen).ucb.tolist()
    one.update(array, numpy.array([2]), numpy.ones(1))
    two.update(seen, numpy.array([2]), numpy.ones(1))
    assert one.score(array).ucb.tolist() == two.score(seen).ucb.tolist()


def test_buffers_that_callers_write_over_are_learned_as_they_are_then() -> None:
    one, two = module(ALONE), module(ALONE)
    random, arms = numpy.random.default_rng(0), numpy.array([1])
    seen = numpy.ones((1, 4, 2))
    one.choose(seen, random)
    seen[:] = 3.0
    one.update(seen, arms, numpy.ones(1))
    two.update(numpy.full((1, 4, 2), 3.0), arms, numpy.ones(1))
    assert one.score(seen).ucb.tolist() == two.score(seen).ucb.tolist()


def test_the_same_generator_makes_the_same_choices() -> None:
    seen = observations(FIXED, 40)
    picks = [module().forward_exploration(act(seen, seed=7)).actions.tolist() for _ in range(2)]
    assert picks[0] == picks[1]
    assert len(set(picks[0])) == 4


@pytest.mark.parametrize("count", [1, 200])
def test_absent_arms_are_never_chosen(count: int) -> None:
    one, seen = taught(FEATURED), observations(FEATURED, count)
    mask = numpy.random.default_rng(1).random((count, 4)) < 0.5
    mask[:, 2] = True
    for acted in (
        one.forward_exploration(act(seen, mask)),
        one.forward_inference(act(seen, mask)),
        one.forward_exploration(act({**seen, "action_mask": mask.astype(numpy.int8)})),
    ):
        assert mask[numpy.arange(count), acted.actions].all()


def test_features_of_absent_arms_are_not_looked_at() -> None:
    one, seen = taught(FEATURED), observations(FEATURED, 1)
    seen["arms"][0, 1] = numpy.nan
    mask = numpy.array([[True, False, True, True]])
    assert one.forward_exploration(act(seen, mask)).actions[0] != 1
    with pytest.raises(RunFailedError, match="arms has nan at row 0, arm 1, column 0"):
        one.forward_exploration(act(seen))


@pytest.mark.parametrize("layout", [FIXED, FEATURED])
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("tensors", [True, False])
def test_scores_leave_out_absent_arms(layout: Layout, beside: bool, tensors: bool) -> None:
    one, seen = taught(layout), observations(layout, 2)
    expected = one.score(seen)
    mask = numpy.array([[True, False, True, True], [True, True, True, False]])
    if layout.arm_dim:
        seen["arms"][~mask] = numpy.nan
    given = {**seen} if beside else {**seen, "action_mask": mask}
    if tensors:
        given = {name: torch.from_numpy(values) for name, values in given.items()}
    scores = one.score(given, action_mask=mask if beside else None)
    assert isinstance(scores.ucb, torch.Tensor) == tensors
    for name, of_absent in (("pred_label", -numpy.inf), ("pred_sigma", 0.0), ("ucb", -numpy.inf)):
        found = numpy.asarray(getattr(scores, name))
        assert found[mask] == pytest.approx(getattr(expected, name)[mask])
        assert found[~mask].tolist() == [of_absent, of_absent]
    seen["context"][1, 0] = numpy.inf
    with pytest.raises(RunFailedError, match="context has inf at row 1, column 0"):
        one.score(seen, action_mask=mask)


@pytest.mark.parametrize("further", [0, 99])
def test_features_of_arms_that_were_not_chosen_are_not_learned_from(further: int) -> None:
    one, two = module(FEATURED), module(FEATURED)
    seen = observations(FEATURED, 1 + further)
    arms, rewards = numpy.ones(1 + further, dtype=int), numpy.ones(1 + further)
    two.update(seen, arms, rewards)
    seen["arms"][:, 0] = numpy.nan
    one.update(seen, arms, rewards)
    assert torch.equal(one.state_dict()["regressions.sums"], two.state_dict()["regressions.sums"])
    with pytest.raises(RunFailedError, match="rewards has nan at row 0"):
        one.update(seen, arms, numpy.full(1 + further, numpy.nan))


@pytest.mark.parametrize("count", [2, 50])
@pytest.mark.parametrize("tensors", [True, False])
def test_arms_that_are_no_whole_numbers_are_refused(count: int, tensors: bool) -> None:
    one, before = taught(), taught()
    seen, rewards = observations(FIXED, count)["context"], numpy.ones(count)
    arms = numpy.ones(count)
    arms[1] = 1.7
    given = torch.from_numpy(arms) if tensors else arms
    with pytest.raises(RunFailedError, match=r"arm 1\.7 of row 1 is no whole number"):
        one.update(seen, given, rewards)
    with pytest.raises(RunFailedError, match=r"arm 1\.7 of row 1 is no whole number"):
        one.update_params(seen, rewards, arms=given)
    with pytest.raises(RunFailedError, match=r"arm nan of row 0 is no whole number"):
        one.statistics(seen, numpy.full(count, numpy.nan), rewards)
    for name, buffer in one.state_dict().items():
        assert torch.equal(buffer, before.state_dict()[name]), name


def test_whole_numbers_of_any_type_are_arms() -> None:
    seen = observations(FIXED, 2)
    learned = []
    for arms in (
        [0, 1],
        numpy.array([0.0, 1.0]),
        numpy.array([0, 1], object),
        torch.tensor([0.0, 1.0]),
        torch.tensor([0.0, 1.0], dtype=torch.bfloat16),
        torch.tensor([0, 1]),
    ):
        one = module()
        one.update(seen, arms, numpy.ones(2))
        learned.append(one.score(seen).ucb.tolist())
    assert learned == [learned[0]] * 6


def test_a_mask_that_allows_no_arm_is_refused() -> None:
    mask = numpy.array([[1, 1, 1, 1], [0, 0, 0, 0]])
    for choose in (module().forward_exploration, module().action_probabilities):
        with pytest.raises(RunFailedError, match="mask of row 1 allows no arm"):
            choose(act(observations(FIXED, 2), mask))


@pytest.mark.parametrize("count", [1, 30])
def test_tensors_are_answered_with_tensors_of_the_same_values(count: int) -> None:
    one, two = taught(FEATURED), taught(FEATURED)
    arrays = observations(FEATURED, count)
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    acted, expected = one.forward_exploration(act(tensors)), two.forward_exploration(act(arrays))
    assert acted.actions.dtype == torch.int64
    assert acted.actions.tolist() == expected.actions.tolist()
    assert acted.extras["ucb"].tolist() == expected.extras["ucb"].tolist()
    one.update(tensors, acted.actions, torch.ones(count))
    two.update(arrays, expected.actions, numpy.ones(count))
    assert torch.equal(one.score(tensors).ucb, torch.from_numpy(two.score(arrays).ucb))


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (FIXED, {}),
        (FIXED, {"model": "joint"}),
        (FIXED, {"model": "hybrid"}),
        (FIXED, {"discount": 0.9, "squared_discount": True}),
        (FEATURED, {}),
        (FEATURED, {"model": "hybrid"}),
    ],
)
def test_torch_computes_what_numpy_computes(
    layout: Layout, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, random = observations(layout, 200), numpy.random.default_rng(2)
    arms, rewards, weights = random.integers(0, 4, 200), random.random(200), random.random(200)
    answers = []
    for devices in (frozenset({"cpu"}), frozenset[str]()):
        monkeypatch.setattr(RidgeRegressions, "numpy_devices", devices)
        one = module(layout, **options)
        for start, stop in ((0, 1), (1, 2), (2, 5), (5, 200)):
            part = {name: values[start:stop] for name, values in seen.items()}
            one.forward_exploration(act(part))
            one.update(part, arms[start:stop], rewards[start:stop], weights[start:stop])
        acted = one.forward_exploration(act(seen))
        assert isinstance(acted.actions, numpy.ndarray)
        assert one.on_cpu == bool(devices)
        answers.append((acted.actions.tolist(), *one.score(seen)))
    assert answers[0][0] == answers[1][0]
    for mine, other in zip(answers[0][1:], answers[1][1:], strict=True):
        assert mine == pytest.approx(other, abs=1e-10)


def observed(num_arms: int, *, featured: bool) -> tuple[Layout, dict[str, Any]]:
    """A layout, and 30 observations of it."""
    random = numpy.random.default_rng(1)
    seen = {"context": random.normal(size=(30, 2))}
    if featured:
        seen["arms"] = random.normal(size=(30, num_arms, 1))
    return Layout(num_arms=num_arms, context_dim=2, arm_dim=int(featured)), seen


@pytest.mark.parametrize("kind", [LinUCBModule, LinTSModule])
@pytest.mark.parametrize("model", ["disjoint", "joint", "hybrid"])
@pytest.mark.parametrize(("first", "then"), [(1.0, 50.0), (1.0, 0.0), (0.0, 2.0)])
def test_a_loaded_state_is_solved_with_the_penalty_of_the_module_that_loads_it(
    kind: Any, model: Any, first: float, then: float
) -> None:
    config = {LinUCBModule: LinUCBConfig, LinTSModule: LinTSConfig}[kind]
    layout, seen = observed(2, featured=model != "disjoint")
    random = numpy.random.default_rng(0)
    rows = seen, random.integers(0, 2, 30), random.normal(size=30)
    loaded = kind(layout, config(model=model, l2_lambda=then))
    alone = kind(layout, config(model=model, l2_lambda=then))
    other = kind(layout, config(model=model, l2_lambda=first))
    for one in (alone, other):
        one.update(*rows)
    other.estimates()
    loaded.load_state_dict(other.state_dict())
    for found, expected in zip(loaded.estimates(), alone.estimates(), strict=True):
        numpy.testing.assert_allclose(found, expected, atol=1e-9)
    # A state that it wrote itself is taken as it is.
    again = kind(layout, config(model=model, l2_lambda=then))
    again.load_state_dict(loaded.state_dict())
    for name, value in again.state_dict().items():
        assert value.equal(loaded.state_dict()[name]), name


@pytest.mark.parametrize("kind", [LinUCBModule, LinTSModule])
def test_a_state_that_does_not_tell_its_penalty_is_solved_anew(kind: Any) -> None:
    config = {LinUCBModule: LinUCBConfig, LinTSModule: LinTSConfig}[kind]
    layout = Layout(num_arms=2, context_dim=2, arm_names=("x", "y"))
    made, loaded = (kind(layout, config(l2_lambda=one)) for one in (50.0, 2.0))
    random = numpy.random.default_rng(0)
    rows = random.normal(size=(30, 2)), random.integers(0, 2, 30), random.normal(size=30)
    alone = kind(layout, config(l2_lambda=2.0))
    for one in (made, alone):
        one.update(*rows)
    state = {name: one for name, one in made.state_dict().items() if "penalty" not in name}
    assert len(state) < len(made.state_dict())
    loaded.load_state_dict(state)
    assert loaded.layout.arm_names == ("x", "y")
    for found, expected in zip(loaded.estimates(), alone.estimates(), strict=True):
        numpy.testing.assert_allclose(found, expected, atol=1e-9)
    # A learner takes it, too.
    learner = build_learner(
        "lints" if kind is LinTSModule else "linucb",
        spaces.Box(-1.0, 1.0, (2,)),
        spaces.Discrete(2),
    )
    whole = learner.get_state()
    whole["modules"]["default"] = {
        name: one for name, one in whole["modules"]["default"].items() if "penalty" not in name
    }
    learner.set_state(whole)
    assert learner.get_state()["modules"]["default"].keys() > whole["modules"]["default"].keys()


def test_parts_of_a_state_are_loaded_where_that_is_asked_for_and_tensors_are_not_changed() -> None:
    layout = Layout(num_arms=2, context_dim=2)
    one, other = (LinUCBModule(layout, LinUCBConfig(alpha=a, l2_lambda=a)) for a in (1.0, 3.0))
    state = {"alpha": torch.tensor([7.0], dtype=torch.float64), "more": torch.zeros(1)}
    told = one.load_state_dict(state, strict=False)
    assert (float(one.alpha), told.unexpected_keys) == (7.0, ["more"])
    assert "regressions.sums" in told.missing_keys
    one.load_state_dict(other.state_dict(), assign=True)
    assert (float(one.regressions.penalty), float(other.regressions.penalty)) == (1.0, 3.0)


@pytest.mark.parametrize("model", ["disjoint", "joint", "hybrid"])
def test_what_is_exported_is_solved_before(model: Any) -> None:
    layout, seen = observed(3, featured=model != "disjoint")
    module = LinUCBModule(layout, LinUCBConfig(model=model, discount=0.9))
    random = numpy.random.default_rng(0)
    module.update(seen, random.integers(0, 3, 30), random.normal(size=30))
    exported = module.forward_export(ActInput(tree_map(torch.tensor, seen))).actions
    assert exported.tolist() == module.forward_inference(ActInput(seen)).actions.tolist()
    assert set(exported.tolist()) == {0, 1, 2}


def test_thompson_sampling_tells_its_layout_and_what_arms_share() -> None:
    layout = Layout(num_arms=2, context_dim=2, arm_dim=1)
    module = LinTSModule(layout, LinTSConfig(model="hybrid"))
    assert module.layout == layout
    module.add_arm()
    assert module.layout.num_arms == 3
    shared = module.shared_estimates()
    assert shared is not None
    assert shared.theta.tolist() == [0.0] * len(shared.theta)


def test_it_is_saved_and_loaded_by_its_state_dict() -> None:
    one, two = taught(alpha=3.0), module(alpha=1.0)
    two.load_state_dict(one.state_dict())
    seen = observations(FIXED, 10)
    assert two.score(seen).ucb.tolist() == one.score(seen).ucb.tolist()


def test_a_copy_learns_apart() -> None:
    one = taught()
    other, seen = copy.deepcopy(one), observations(FIXED, 10)
    before = one.score(seen).ucb.tolist()
    other.update(seen, numpy.zeros(10, dtype=int), numpy.ones(10))
    assert one.score(seen).ucb.tolist() == before
    assert other.score(seen).ucb.tolist() != before


BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"rewards": numpy.array([0.0, numpy.nan])}, "rewards has nan at row 1"),
    ({"rewards": numpy.array([0.0, numpy.inf])}, "rewards has inf at row 1"),
    ({"context": numpy.array([[0, 0, 0], [0, numpy.nan, 0]])}, "nan at row 1, column 1"),
    ({"context": numpy.array([[0, 0, -numpy.inf], [0, 0, 0]])}, "-inf at row 0, column 2"),
    ({"context": numpy.full((2, 3), 1e200)}, "too large to be squared"),
    ({"weights": numpy.array([1.0, -0.5])}, "weight of row 1 is -0.5"),
    ({"weights": numpy.array([1.0, numpy.nan])}, "weights has nan at row 1"),
    ({"actions": numpy.array([0, 4])}, "arm 4 of row 1 is none of 0 to 3"),
    ({"actions": numpy.array([-1, 0])}, "arm -1 of row 0 is none of 0 to 3"),
]

BAD_SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"actions": numpy.array([0])}, "2 rewards were given, but actions has 1"),
    ({"weights": numpy.ones(3)}, "2 rewards were given, but weights has 3"),
    ({"context": numpy.ones((3, 3))}, "2 rewards were given, but observations has 3"),
    ({"context": numpy.ones((2, 5))}, "context must have the shape (n, 3), found (2, 5)"),
]


def assert_refused(change: dict[str, Any], message: str, further: int) -> None:
    """Two rows with the change, followed by good ones, are refused and leave no trace."""
    one = taught()
    before = copy.deepcopy(one.state_dict())
    columns = {
        "context": numpy.ones((2, 3)),
        "actions": numpy.array([0, 1]),
        "rewards": numpy.ones(2),
        "weights": numpy.ones(2),
        **change,
    }
    given = [
        numpy.concatenate([column, numpy.ones((further, *column.shape[1:]), dtype=column.dtype)])
        for column in columns.values()
    ]
    with pytest.raises(RunFailedError) as raised:
        one.update(*given)
    assert message in str(raised.value)
    for name, buffer in one.state_dict().items():
        assert torch.equal(buffer, before[name]), name


@pytest.mark.parametrize("further", [0, 100])
@pytest.mark.parametrize(("change", "message"), BAD_VALUES)
def test_bad_rows_are_refused_before_anything_is_learned(
    change: dict[str, Any], message: str, further: int
) -> None:
    assert_refused(change, message, further)


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        (FIXED, {"rewards": numpy.array([numpy.nan])}, "rewards has nan at row 0"),
        (
            FIXED,
            {"context": numpy.array([[0, numpy.inf, 0]])},
            "context has inf at row 0, column 1",
        ),
        (FIXED, {"context": numpy.full((1, 3), 1e200)}, "too large to be squared"),
        (FIXED, {"weights": numpy.array([numpy.inf])}, "weights has inf at row 0"),
        (FIXED, {"weights": numpy.array([-1.0])}, "weight of row 0 is -1.0"),
        (FIXED, {"actions": numpy.array([4])}, "arm 4 of row 0 is none of 0 to 3"),
        (FEATURED, {"arms": numpy.full((1, 4, 2), numpy.nan)}, "arms has nan at row 0, arm 1"),
        (ALONE, {"arms": numpy.full((1, 4, 2), -numpy.inf)}, "arms has -inf at row 0, arm 1"),
    ],
)
def test_a_bad_row_alone_is_refused_before_anything_is_learned(
    layout: Layout, change: dict[str, Any], message: str
) -> None:
    one = taught(layout)
    before = copy.deepcopy(one.state_dict())
    columns = {**observations(layout, 1), **CHOSEN, **change}
    rows = [columns.pop(name) for name in CHOSEN]
    with pytest.raises(RunFailedError) as raised:
        one.update(columns, *rows)
    assert message in str(raised.value)
    for name, buffer in one.state_dict().items():
        assert torch.equal(buffer, before[name]), name


@pytest.mark.parametrize(("change", "message"), BAD_SHAPES)
def test_columns_of_another_length_or_width_are_refused(
    change: dict[str, Any], message: str
) -> None:
    assert_refused(change, message, 0)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_an_infinite_feature_is_refused_when_choosing(count: int) -> None:
    seen = observations(FIXED, count)
    seen["context"][-1, 1] = numpy.inf
    with pytest.raises(RunFailedError, match=f"context has inf at row {count - 1}, column 1"):
        taught(alpha=0.0).forward_exploration(act(seen))


@pytest.mark.parametrize(
    ("layout", "options", "given", "message"),
    [
        (FIXED, {}, {}, "arms must have the shape (2,), found nothing"),
        (FIXED, {"model": "joint"}, {"arms": [0, 1]}, "takes no arms"),
        (FIXED, {}, {"arms": [0, 1], "z": numpy.ones((2, 1))}, "takes no z"),
        (FIXED, {"model": "hybrid"}, {"arms": [0, 1]}, "z must have the shape (2, 3), found no"),
        (FIXED, {}, {"arms": [0, 1], "x": numpy.ones((2, 2))}, "x must have the shape (2, 3)"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_refused(
    layout: Layout, options: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    one = module(layout, **options)
    width = 12 if options.get("model") == "joint" else 3
    with pytest.raises(RunFailedError) as raised:
        one.update_params(**{"x": numpy.ones((2, width)), "y": numpy.ones(2), **given})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ([[1.0, 2.0, 3.0]], "reads an array or a mapping, got list"),
        ({"arms": numpy.ones((1, 4, 2))}, "context must have the shape (n, 3), found nothing"),
        (
            {"context": numpy.ones((1, 3)), "arms": numpy.ones((1, 4, 2))},
            "fixed arms may not carry features",
        ),
        (
            {"context": numpy.ones((1, 3)), "action_mask": numpy.ones((1, 5))},
            "action_mask must have the shape (n, 4), found (1, 5)",
        ),
    ],
)
def test_observations_of_another_shape_are_refused(seen: Any, message: str) -> None:
    with pytest.raises(RunFailedError) as raised:
        module().score(seen)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "mask",
    [[0.5, 0, 1, 1], ["False", "True", "", ""], [numpy.nan, 1, 1, 1], [2, -1, 1, 1], [None] * 4],
)
@pytest.mark.parametrize("to_mask", [list, numpy.array])
def test_masks_that_are_no_booleans_are_refused(mask: Any, to_mask: Any) -> None:
    one, seen, masks = taught(), observations(FIXED, 1), to_mask([mask])
    # Scores are asked for first: they compute the inverses that are due.
    random, _ = numpy.random.default_rng(0), one.score(seen)
    before = copy.deepcopy(one.state_dict())
    for call in (
        lambda: one.score(seen, action_mask=masks),
        lambda: one.choose(seen, random, action_mask=masks),
        lambda: one.update({**seen, "action_mask": masks}, [0], [1.0]),
    ):
        with pytest.raises(RunFailedError, match=r"mask of row 0 has .* for arm 0, not a boolean"):
            call()
    assert all(torch.equal(one.state_dict()[name], before[name]) for name in before)


@pytest.mark.parametrize("dtype", [bool, numpy.int8, numpy.uint8, numpy.float32, object])
def test_masks_of_0_and_1_are_those_of_booleans(dtype: Any) -> None:
    one, seen, mask = taught(), observations(FIXED, 1), numpy.array([[True, False, True, False]])
    found, wanted = (one.score(seen, action_mask=each) for each in (mask.astype(dtype), mask))
    assert numpy.array_equal(found.ucb, wanted.ucb)


@pytest.mark.parametrize("wrong", [["a", "b"], [[1.0], [1.0, 2.0]]])
def test_rewards_and_weights_that_are_no_numbers_are_refused_by_name(wrong: Any) -> None:
    one, seen = module(), observations(FIXED, 2)
    with pytest.raises(
        RunFailedError, match=r"^rlplug-linucb: rewards must be real numbers, found "
    ):
        one.update(seen, [0, 1], wrong)
    with pytest.raises(
        RunFailedError, match=r"^rlplug-linucb: weights must be real numbers, found "
    ):
        one.update(seen, [0, 1], [1.0, 1.0], wrong)
