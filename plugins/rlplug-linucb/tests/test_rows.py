"""Joint, disjoint and hybrid models are the regressions they claim to be."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_linucb import Layout, LinUCB, LinUCBConfig, LinUCBModule

from rlplug import ActInput
from rlplug.errors import RunFailedError

FIXED = Layout(num_arms=3, context_dim=4)
FEATURED = Layout(num_arms=3, context_dim=4, arm_dim=2)
ARMS_ALONE = Layout(num_arms=3, arm_dim=2)
NOTHING = Layout(num_arms=3)
ROWS = 80


def observations(layout: Layout, count: int, seed: int = 0) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    parts = {"context": random.standard_normal((count, layout.context_dim))}
    if layout.arm_dim:
        parts["arms"] = random.standard_normal((count, layout.num_arms, layout.arm_dim))
    return {name: part.astype(numpy.float32) for name, part in parts.items() if part.size} or {
        "action_mask": numpy.ones((count, 3), bool)
    }


def kron(left: Any, right: Any) -> Any:
    """The product of every feature of one with every feature of the other, row by row."""
    return numpy.einsum("ni,nj->nij", left, right).reshape(len(left), -1)


def rows_of(model: str, layout: Layout, seen: dict[str, Any], arms: Any, interact: bool) -> Any:
    """The rows of one ridge regression that is the whole model."""
    one_hot = numpy.eye(3)[arms]
    context = seen.get("context", numpy.ones((len(arms), 1))).astype(float)
    if model == "disjoint":
        return kron(one_hot, context)
    shared = one_hot
    if layout.arm_dim:
        shared = seen["arms"][numpy.arange(len(arms)), arms].astype(float)
    if model == "joint" and not layout.context_dim:
        return shared
    if model == "joint" and not interact:
        return numpy.hstack([context, shared])
    if model == "joint" and not layout.arm_dim:
        return kron(context, shared)
    if layout.arm_dim and interact and layout.context_dim:
        shared = numpy.hstack([shared, kron(context, shared)])
    if model == "joint":
        return shared
    return numpy.hstack([shared if layout.arm_dim else context, kron(one_hot, context)])


MODELS = [
    ("disjoint", FIXED, {}),
    ("disjoint", NOTHING, {}),
    ("joint", FIXED, {}),
    ("joint", FIXED, {"use_interaction_features": False}),
    ("joint", FEATURED, {}),
    ("joint", FEATURED, {"use_interaction_features": False}),
    ("joint", ARMS_ALONE, {}),
    ("hybrid", FIXED, {}),
    ("hybrid", NOTHING, {}),
    ("hybrid", FEATURED, {}),
    ("hybrid", FEATURED, {"use_interaction_features": False}),
    ("hybrid", ARMS_ALONE, {}),
]


def taught(
    layout: Layout, sizes: list[int], weights: Any, **options: Any
) -> tuple[LinUCBModule, dict[str, Any], Any, Any]:
    """A module that has learned rows of chance in batches of these sizes, and the rows."""
    module = LinUCBModule(layout, LinUCBConfig(**options))
    seen, random = observations(layout, ROWS), numpy.random.default_rng(1)
    arms, rewards = random.integers(0, 3, ROWS), random.standard_normal(ROWS)
    for step in numpy.split(numpy.arange(ROWS), numpy.cumsum(sizes)[:-1]):
        part = {name: column[step] for name, column in seen.items()}
        module.update(part, arms[step], rewards[step], None if weights is None else weights[step])
    return module, seen, arms, rewards


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("discount", [1.0, 0.95])
@pytest.mark.parametrize("sizes", [[1] * ROWS, [ROWS], [1, 2, 40, 37]], ids=len)
@pytest.mark.parametrize(("model", "layout", "options"), MODELS, ids=str)
def test_a_model_is_one_ridge_regression_on_its_rows(
    model: str, layout: Layout, options: Any, sizes: list[int], discount: float, weighted: bool
) -> None:
    weights = numpy.random.default_rng(3).random(ROWS) if weighted else None
    options = {"model": model, "l2_lambda": 0.5, **options}
    module, seen, arms, rewards = taught(layout, sizes, weights, discount=discount, **options)
    interact = options.get("use_interaction_features", True)
    x = rows_of(model, layout, seen, arms, interact)
    counted = discount ** numpy.arange(ROWS)[::-1] * (1.0 if weights is None else weights)
    inverse = numpy.linalg.inv((x.T * counted) @ x + 0.5 * numpy.eye(x.shape[1]))
    theta = inverse @ (x.T @ (counted * rewards))
    probes = observations(layout, 6, seed=5)
    scores = module.score(probes, alpha=2.0)
    for arm in range(3):
        rows = rows_of(model, layout, probes, numpy.full(6, arm), interact)
        sigma = numpy.sqrt(((rows @ inverse) * rows).sum(1))
        assert scores.pred_label[:, arm] == pytest.approx(rows @ theta, abs=1e-9)
        assert scores.pred_sigma[:, arm] == pytest.approx(sigma, abs=1e-9)
        assert scores.ucb[:, arm] == pytest.approx(rows @ theta + 2.0 * sigma, abs=1e-9)
    tensors = {name: torch.from_numpy(part) for name, part in probes.items()}
    exported = module.forward_export(ActInput(tensors)).actions
    assert exported.tolist() == module.forward_inference(ActInput(probes)).actions.tolist()


def test_estimates_are_those_of_the_paper_for_each_arm_or_for_all() -> None:
    module, seen, arms, rewards = taught(FIXED, [ROWS], None)
    x = seen["context"][arms == 1].astype(float)
    A, b, A_inv, theta = (array[1] for array in module.estimates())
    assert pytest.approx(x.T @ x) == A
    assert b == pytest.approx(x.T @ rewards[arms == 1])
    assert A_inv == pytest.approx(numpy.linalg.inv(A + numpy.eye(4)))
    assert theta == pytest.approx(A_inv @ b)
    module.estimates().theta[:] = 0.0
    assert module.estimates().theta[1] == pytest.approx(theta)
    assert taught(ARMS_ALONE, [ROWS], None)[0].estimates().theta.shape == (2,)


@pytest.mark.parametrize("model", ["disjoint", "hybrid"])
def test_arms_that_come_and_go_leave_what_others_know(model: str) -> None:
    module, seen, arms, rewards = taught(FIXED, [ROWS], None, model=model)
    rest = arms != 1
    alone = LinUCBModule(FIXED, LinUCBConfig(model=model))
    alone.update(seen["context"][rest], arms[rest], rewards[rest])
    expected = alone.score(seen).ucb
    assert module.add_arm() == 3
    module.remove_arm(1)
    scores = module.score(seen)
    if model == "disjoint":
        assert scores.ucb[:, :2] == pytest.approx(expected[:, [0, 2]])
        assert scores.ucb[:, 2] == pytest.approx(numpy.linalg.norm(seen["context"], axis=1))
    assert module.add_arm() == 3
    module.update(seen["context"][:1], numpy.array([3]), numpy.array([9.0]))
    assert module.score(seen).pred_label.shape == (ROWS, 4)


def test_arms_have_names_that_a_saved_state_brings_along() -> None:
    module = LinUCBModule(Layout(num_arms=2, context_dim=1, arm_names=("a", "b")))
    module.update(numpy.ones((3, 1)), ["b", "a", "b"], numpy.array([1.0, 0.0, 1.0]))
    assert module.add_arm("c") == 2
    module.remove_arm("a")
    assert module.layout.arm_names == ("b", "c")
    other = LinUCBModule(Layout(num_arms=2, context_dim=1, arm_names=("x", "y")))
    other.load_state_dict(module.state_dict())
    assert other.layout.arm_names == ("b", "c")
    assert other.score(numpy.ones((1, 1))).pred_label.tolist() == [[pytest.approx(2 / 3), 0.0]]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda module: module.add_arm("a"), "'a'"),
        (lambda module: module.add_arm(), "''"),
        (lambda module: module.remove_arm("z"), "'z'"),
        (lambda module: module.remove_arm(7), "7"),
        (lambda module: module.update(numpy.ones((1, 1)), ["z"], numpy.ones(1)), "'z'"),
    ],
)
def test_arms_that_there_are_not_are_refused_by_name(call: Any, named: str) -> None:
    module = LinUCBModule(Layout(num_arms=3, context_dim=1, arm_names=("a", "b", "c")))
    with pytest.raises(RunFailedError, match=named):
        call(module)


CONTEXT, ARMS = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (4, 2))
MASK, FOUR = spaces.MultiBinary(4), spaces.Discrete(4)


@pytest.mark.parametrize(
    ("space", "actions", "options", "named"),
    [
        (CONTEXT, CONTEXT, {}, "Discrete"),
        (CONTEXT, spaces.Discrete(1), {}, "two arms"),
        (CONTEXT, spaces.Discrete(4, start=1), {}, "from 0"),
        (spaces.Discrete(3), FOUR, {}, "context"),
        (spaces.Box(-1, 1, (2, 2)), FOUR, {}, "context"),
        (spaces.Dict(image=CONTEXT), FOUR, {}, "image"),
        (spaces.Dict(context=CONTEXT, arm_ids=MASK), FOUR, {}, "arm_ids"),
        (spaces.Dict(arms=spaces.Box(-1, 1, (3, 2))), FOUR, {}, "arms"),
        (spaces.Dict(arms=ARMS), FOUR, {"model": "disjoint"}, "disjoint"),
        (CONTEXT, FOUR, {"use_interaction_features": False}, "interaction"),
    ],
)
def test_spaces_of_no_linear_bandit_are_refused_by_what_is_wrong(
    space: spaces.Space[Any], actions: spaces.Space[Any], options: Any, named: str
) -> None:
    assert named in str(LinUCB(LinUCBConfig(**options)).supports(space, actions))
