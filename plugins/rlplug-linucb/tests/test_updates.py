"""What is learned depends on the rows alone: not on how they come, nor on who counts them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rlplug_linucb import Layout, LinUCBConfig, LinUCBModule
from torch import Tensor

MODELS: list[dict[str, Any]] = [
    {"model": "disjoint"},
    {"model": "joint"},
    {"model": "hybrid"},
    {"model": "disjoint", "discount": 0.9},
    {"model": "joint", "discount": 0.9},
    {"model": "hybrid", "discount": 0.9},
    {"model": "disjoint", "discount": 0.9, "squared_discount": True},
]
LAYOUT = Layout(num_arms=3, context_dim=4)
PROBES = numpy.random.default_rng(9).standard_normal((7, 4))


def module(**options: Any) -> LinUCBModule:
    return LinUCBModule(LAYOUT, LinUCBConfig(**options))


def rows(count: int, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Contexts, arms, rewards and weights."""
    random = numpy.random.default_rng(seed)
    arms = random.integers(0, 3, count)
    return (
        random.standard_normal((count, 4)),
        arms,
        random.standard_normal(count),
        random.random(count),
    )


def assert_same(one: LinUCBModule, two: LinUCBModule) -> None:
    for mine, other in zip(one.score(PROBES), two.score(PROBES), strict=True):
        assert mine == pytest.approx(other, abs=1e-9)


def added(statistics: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(one).sum(0) for one in zip(*statistics, strict=True)]


def worked_example() -> LinUCBModule:
    one = LinUCBModule(Layout(num_arms=2, context_dim=2))
    x = numpy.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    one.update_params(x, numpy.array([1.0, 0.0, 1.0]), arms=numpy.zeros(3, dtype=int))
    return one


def test_the_worked_example_gives_its_numbers() -> None:
    # A + I = [[3, 1], [1, 3]], b = (2, 1): theta = (5, 1) / 8, sigma(1, 0) = sqrt(3 / 8).
    one = worked_example()
    means, sigma, ucb = one.score(numpy.array([[1.0, 0.0], [0.0, 1.0]]))
    assert means[:, 0] == pytest.approx([0.625, 0.125], abs=1e-12)
    assert sigma[0, 0] == pytest.approx(0.6123724357, abs=1e-10)
    assert ucb[0, 0] == pytest.approx(1.2373724357, abs=1e-10)


def test_the_worked_example_gives_its_numbers_after_a_discount() -> None:
    # A / 2 + I = [[2, .5], [.5, 2]], b = (1, .5): theta = (7, 2) / 15, sigma = sqrt(8 / 15).
    one = worked_example()
    one.discount_(0.5)
    means, sigma, _ = one.score(numpy.array([[1.0, 0.0], [0.0, 1.0]]))
    assert means[:, 0] == pytest.approx([7 / 15, 2 / 15], abs=1e-12)
    assert sigma[0, 0] == pytest.approx(0.7302967433, abs=1e-10)


def test_an_arm_without_data_is_as_unsure_as_the_penalty_leaves_it() -> None:
    one = LinUCBModule(Layout(num_arms=2, context_dim=2), LinUCBConfig(l2_lambda=4.0))
    assert one.score(numpy.array([[3.0, 4.0]])).pred_sigma.tolist() == [[2.5, 2.5]]


@pytest.mark.parametrize("options", MODELS, ids=str)
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 60), max_size=6), seed=st.integers(0, 100))
def test_rows_may_be_cut_into_batches_in_any_way(
    options: dict[str, Any], cuts: list[int], seed: int
) -> None:
    whole, parts = module(**options), module(**options)
    columns = rows(60, seed)
    whole.update(*columns)
    borders = [0, *sorted(cuts), 60]
    for start, stop in pairwise(borders):
        parts.update(*(column[start:stop] for column in columns))
    assert_same(whole, parts)


@pytest.mark.parametrize("model", ["disjoint", "joint", "hybrid"])
@settings(max_examples=10)
@given(order=st.permutations(range(20)))
def test_without_a_discount_the_order_of_rows_does_not_matter(model: str, order: list[int]) -> None:
    one, two = module(model=model), module(model=model)
    columns = rows(20)
    for index, other in enumerate(order):
        one.update(*(column[index : index + 1] for column in columns))
        two.update(*(column[other : other + 1] for column in columns))
    assert_same(one, two)


@pytest.mark.parametrize("model", ["disjoint", "joint", "hybrid"])
@pytest.mark.parametrize("count", [1, 300])
def test_a_row_of_weight_w_counts_as_w_rows(model: str, count: int) -> None:
    weighted, copied = module(model=model), module(model=model)
    contexts, arms, rewards, _ = rows(count)
    weights = (numpy.arange(count) + 2) % 4
    weighted.update(contexts, arms, rewards, weights)
    copied.update(*(numpy.repeat(column, weights, axis=0) for column in (contexts, arms, rewards)))
    assert_same(weighted, copied)


def test_data_never_makes_it_less_sure() -> None:
    one = module(model="disjoint")
    before = one.score(PROBES).pred_sigma
    for index in range(200):
        one.update(*(column[index : index + 1] for column in rows(200)))
        after = one.score(PROBES).pred_sigma
        assert (after <= before + 1e-12).all()
        before = after


def test_the_variances_that_were_met_sum_to_less_than_the_elliptical_potential() -> None:
    one = LinUCBModule(Layout(num_arms=2, arm_dim=4))
    met = 0.0
    for x in rows(500)[0]:
        met += min(1.0, one.score(numpy.stack([x, x])[None]).pred_sigma[0, 0] ** 2)
        one.update_params(x[None], numpy.zeros(1))
    # det A_0 = 1 at l2_lambda = 1; the inverse's determinant is that of A_T, inverted.
    potential = -numpy.linalg.slogdet(one.get_buffer("regressions.solved")[0, :4].numpy())[1]
    assert 10.0 < met <= 2.0 * potential


def test_d_linucb_equals_its_formula() -> None:
    # x = 2, then x = 1, discount 0.5: V = 4/2 + 1 + 1 = 4, V~ = 4/4 + 1 + 1 = 3.
    layout = Layout(num_arms=2, arm_dim=1)
    one = LinUCBModule(layout, LinUCBConfig(discount=0.5, squared_discount=True))
    one.update_params(numpy.array([[2.0]]), numpy.array([1.0]))
    one.update_params(numpy.array([[1.0]]), numpy.array([3.0]))
    means, sigma, _ = one.score(numpy.array([[[1.0], [2.0]]]))
    # b = 2 / 2 + 3 = 4: theta = 1; sigma(x) = |x| sqrt(V~) / V.
    assert means[0] == pytest.approx([1.0, 2.0], abs=1e-12)
    assert sigma[0] == pytest.approx([3**0.5 / 4, 3**0.5 / 2], abs=1e-12)


def test_all_arms_of_a_disjoint_model_forget_with_every_row() -> None:
    # Arm 0 saw x = 1, then arm 1 two rows: V_0 = 1/4 + 1.
    one = LinUCBModule(Layout(num_arms=2, context_dim=1), LinUCBConfig(discount=0.5))
    for arm in (0, 1, 1):
        one.update(numpy.ones((1, 1)), numpy.array([arm]), numpy.ones(1))
    assert one.score(numpy.ones((1, 1))).pred_sigma[0, 0] == pytest.approx(0.8**0.5, abs=1e-12)


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_learners_that_add_their_statistics_know_what_one_would(options: dict[str, Any]) -> None:
    shares = [rows(20, seed) for seed in range(3)]
    many, single = module(**options), module(**options)
    gathered = [many.statistics(*share) for share in shares]
    many.absorb(added(gathered), 20)
    # Rows that learners met in the same step are equally old.
    for step in range(20):
        together = [
            single.statistics(*(column[step : step + 1] for column in one)) for one in shares
        ]
        single.absorb(added(together), 1)
    assert_same(many, single)
    if "discount" not in options:
        plain = module(**options)
        plain.update(*(numpy.concatenate(columns) for columns in zip(*shares, strict=True)))
        assert_same(many, plain)


def test_float32_rows_are_summed_in_float64() -> None:
    one = LinUCBModule(Layout(num_arms=2, context_dim=1))
    count = 20_000
    x = numpy.full((count, 1), 1.0 + 2**-23, dtype=numpy.float32)
    one.update(x, numpy.zeros(count, dtype=int), numpy.zeros(count, dtype=numpy.float32))
    assert float(one.get_buffer("regressions.sums")[0, 0, 0]) == pytest.approx(
        count * (1.0 + 2**-23) ** 2, rel=1e-13
    )
