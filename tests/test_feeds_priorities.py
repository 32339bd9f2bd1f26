"""The sum tree: sums, shares and what is drawn."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplug.config import Schedule
from rlplug.feeds.priorities import Priorities, SumTree


def test_rows_are_drawn_in_proportion_one_from_each_share() -> None:
    tree = SumTree(5_000)
    tree.set(numpy.array([3, 40, 4_999]), numpy.array([1.0, 2.0, 5.0]))
    rows = tree.draw(numpy.random.default_rng(0), 8)
    # Eight shares of 1 each: the first ends where row 3 ends, and so on.
    assert rows.tolist() == [3, 40, 40, 4_999, 4_999, 4_999, 4_999, 4_999]
    assert tree.total == 8.0


def test_a_row_that_is_set_again_counts_once_and_with_its_last_value() -> None:
    tree = SumTree(100)
    tree.set(numpy.array([7, 7, 7]), numpy.array([1.0, 2.0, 3.0]))
    tree.set(numpy.array([8]), numpy.array([1.0]))
    assert tree.total == 4.0
    tree.set(numpy.array([7]), 0.0)
    assert set(tree.draw(numpy.random.default_rng(0), 50).tolist()) == {8}


@settings(max_examples=50)
@given(
    st.integers(1, 3_000),
    st.lists(st.tuples(st.integers(0, 2_999), st.floats(0, 1e6)), min_size=1, max_size=60),
)
def test_the_total_is_the_sum_of_leaves_and_nothing_of_weight_zero_is_drawn(
    size: int, changes: list[tuple[int, float]]
) -> None:
    tree = SumTree(size)
    for row, value in changes:
        tree.set(numpy.array([row % size]), numpy.array([value]))
    assert tree.total == pytest.approx(tree.leaves.sum())
    if tree.total > 0:
        rows = tree.draw(numpy.random.default_rng(0), 32)
        assert (tree.leaves[rows] > 0).all()
        assert rows.max() < size


def test_weights_take_back_the_bias() -> None:
    priorities = Priorities(2, alpha=0.5, beta=Schedule(((0, 1.0),)), eps=0.0)
    priorities.add(numpy.array([0, 1]), numpy.array([], numpy.int64))
    priorities.learned(numpy.array([0, 1]), numpy.array([1.0, -9.0]))
    # The roots of 1 and 9: row 1 is drawn three times as often and counts a third.
    rows, weights = priorities.draw(numpy.random.default_rng(0), 4, 0)
    assert rows.tolist() == [0, 1, 1, 1]
    assert weights.tolist() == pytest.approx([1.0, 1 / 3, 1 / 3, 1 / 3])


def test_weights_are_at_most_1_over_the_rows_of_all_learners() -> None:
    asked: list[float] = []

    def least(own: float) -> float:
        asked.append(own)
        return min(own, 1 / 8)

    priorities = Priorities(2, alpha=0.5, beta=Schedule(((0, 1.0),)), eps=0.0, least=least)
    priorities.add(numpy.array([0, 1]), numpy.array([], numpy.int64))
    priorities.learned(numpy.array([0, 1]), numpy.array([1.0, -9.0]))
    rows, weights = priorities.draw(numpy.random.default_rng(0), 4, 0)
    # Drawn with 1/4 and 3/4, here; another learner has a row that is drawn with 1/8.
    assert rows.tolist() == [0, 1, 1, 1]
    assert asked == [1 / 4]
    assert weights.tolist() == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])


def test_full_correction_makes_the_weighted_mean_that_of_all_rows() -> None:
    priorities = Priorities(4, alpha=1.0, beta=Schedule(((0, 1.0),)), eps=0.0)
    priorities.add(numpy.arange(4), numpy.array([], numpy.int64))
    priorities.learned(numpy.arange(4), numpy.array([1.0, 2.0, 3.0, 4.0]))
    values = numpy.array([10.0, 20.0, 30.0, 40.0])
    rows, weights = priorities.draw(numpy.random.default_rng(0), 10_000, 0)
    mean = (weights * values[rows]).sum() / weights.sum()
    assert mean == pytest.approx(25.0, rel=1e-3)


NOTHING = numpy.array([], numpy.int64)


def test_rows_that_are_gone_are_not_drawn() -> None:
    priorities = Priorities(3, alpha=1.0, beta=Schedule(((0, 1.0),)), eps=0.0)
    priorities.add(numpy.array([0, 1]), NOTHING)
    priorities.add(numpy.array([2]), numpy.array([0]))
    rows, _ = priorities.draw(numpy.random.default_rng(0), 4, 0)
    assert rows.tolist() == [1, 1, 2, 2]


def test_new_rows_have_the_highest_priority_that_any_row_ever_had() -> None:
    priorities = Priorities(3, alpha=1.0, beta=Schedule(((0, 1.0),)), eps=0.0)
    priorities.add(numpy.array([0, 1]), NOTHING)
    priorities.learned(numpy.array([0]), numpy.array([4.0]))
    priorities.learned(numpy.array([0, 1]), numpy.array([1.0, 1.0]))
    priorities.add(numpy.array([2]), NOTHING)
    # Priorities 1, 1 and 4.
    rows, _ = priorities.draw(numpy.random.default_rng(0), 6, 0)
    assert rows.tolist() == [0, 1, 2, 2, 2, 2]


def test_what_rounding_leads_astray_is_drawn_again_until_it_is_a_row() -> None:
    tree = SumTree(64)
    # The smallest number there is: half of it is rounded to nothing, or to all of it, where the
    # tree ends.
    tree.set(numpy.array([3]), numpy.array([5e-324]))
    random = numpy.random.default_rng(0)
    assert {tree.draw(random, 1).item() for _ in range(100)} == {3}
