"""Joint, disjoint and hybrid models are the regressions they claim to be."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from rlplug_linucb import Layout, LinUCBConfig, LinUCBModule

FIXED = Layout(num_arms=3, context_dim=4)
FEATURED = Layout(num_arms=3, context_dim=4, arm_dim=2)


def module(layout: Layout, **options: Any) -> LinUCBModule:
    return LinUCBModule(layout, LinUCBConfig(**options))


def observations(layout: Layout, count: int, seed: int = 0) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    parts = {"context": random.standard_normal((count, layout.context_dim))}
    if layout.arm_dim:
        parts["arms"] = random.standard_normal((count, layout.num_arms, layout.arm_dim))
    return parts


def choices(count: int, seed: int = 1) -> tuple[Any, Any]:
    random = numpy.random.default_rng(seed)
    return random.integers(0, 3, count), random.standard_normal(count)


def one_hot(arms: Any) -> Any:
    return numpy.eye(3)[arms]


def kron(left: Any, right: Any) -> Any:
    """The product of every feature of one with every feature of the other, row by row."""
    return numpy.einsum("...i,...j->...ij", left, right).reshape(*left.shape[:-1], -1)


def assert_is_ridge(layout: Layout, learned: LinUCBModule, design: Any, one_by_one: bool) -> None:
    """The module scores as one ridge regression on `design(context, arm features, arms)`."""
    seen, (arms, rewards) = observations(layout, 80), choices(80)
    steps = [slice(i, i + 1) for i in range(80)] if one_by_one else [slice(0, 80)]
    for step in steps:
        learned.update({name: one[step] for name, one in seen.items()}, arms[step], rewards[step])
    of_arm = seen["arms"][numpy.arange(80), arms] if layout.arm_dim else one_hot(arms)
    x = design(seen["context"], of_arm, arms)
    inverse = numpy.linalg.inv(x.T @ x + numpy.eye(x.shape[1]))
    theta = inverse @ (x.T @ rewards)
    probes = observations(layout, 6, seed=5)
    for arm in range(3):
        every = numpy.full(6, arm)
        of_arm = probes["arms"][:, arm] if layout.arm_dim else one_hot(every)
        rows = design(probes["context"], of_arm, every)
        scores = learned.score(probes)
        assert scores.pred_label[:, arm] == pytest.approx(rows @ theta, abs=1e-10)
        variance = numpy.einsum("nd,de,ne->n", rows, inverse, rows)
        assert scores.pred_sigma[:, arm] == pytest.approx(variance**0.5, abs=1e-10)


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize(
    ("layout", "options", "design"),
    [
        (FIXED, {"model": "joint"}, lambda c, f, a: kron(f, c)),
        (
            FIXED,
            {"model": "joint", "use_interaction_features": False},
            lambda c, f, a: numpy.hstack([c, f]),
        ),
        (FIXED, {}, lambda c, f, a: kron(one_hot(a), c)),
        (FIXED, {"model": "hybrid"}, lambda c, f, a: numpy.hstack([c, kron(one_hot(a), c)])),
        (FEATURED, {}, lambda c, f, a: numpy.hstack([f, kron(f, c)])),
        (
            FEATURED,
            {"use_interaction_features": False},
            lambda c, f, a: numpy.hstack([c, f]),
        ),
        (
            FEATURED,
            {"model": "hybrid"},
            lambda c, f, a: numpy.hstack([f, kron(f, c), kron(one_hot(a), c)]),
        ),
        (
            FEATURED,
            {"model": "hybrid", "use_interaction_features": False},
            lambda c, f, a: numpy.hstack([f, kron(one_hot(a), c)]),
        ),
    ],
)
def test_every_model_equals_one_ridge_regression_on_its_features(
    layout: Layout, options: dict[str, Any], design: Any, one_by_one: bool
) -> None:
    assert_is_ridge(layout, module(layout, **options), design, one_by_one)


def test_arms_alone_need_no_context() -> None:
    layout = Layout(num_arms=2, arm_dim=2)
    one = module(layout)
    arms = numpy.array([[[1.0, 0.0], [0.0, 1.0]]])
    one.update(arms, numpy.array([1]), numpy.array([1.0]))
    assert one.score({"arms": arms}).pred_label.tolist() == [[0.0, 0.5]]


def test_a_hybrid_model_solves_all_its_blocks_anew_together() -> None:
    often, never = (module(FIXED, model="hybrid", refresh_every=n) for n in (5, 10_000))
    seen, (arms, rewards) = observations(FIXED, 60), choices(60)
    for index in range(60):
        for one in (often, never):
            part = {"context": seen["context"][index : index + 1]}
            one.update(part, arms[index : index + 1], rewards[index : index + 1])
            one.score(part)
    assert often.fallbacks()["refreshed"] == 12 * 4
    assert never.fallbacks()["refreshed"] == 0
    for mine, other in zip(often.score(seen), never.score(seen), strict=True):
        assert mine == pytest.approx(other, abs=1e-10)
