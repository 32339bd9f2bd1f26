"""Batches: columns, side tables, extension, and minibatches."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplug.batch import Batch, minibatches
from rlplug.errors import RequestError


def rollout() -> Batch:
    """Two fragments, of 3 and 2 rows; observations count up, final ones are negative."""
    return Batch(
        {
            "observations": torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]]),
            "rewards": torch.arange(5.0),
            "fragments": torch.tensor([[0, 3], [3, 5]]),
            "final_observations": torch.tensor([[-1.0], [-2.0]]),
            "state": {"h": torch.tensor([[10.0], [20.0]])},
        }
    )


def test_arrays_become_tensors_without_a_copy_when_they_are_read() -> None:
    rewards = numpy.zeros(2)
    batch = Batch({"rewards": rewards})
    rewards[0] = 5.0
    assert batch["rewards"].tolist() == [5.0, 0.0]
    assert batch.array("rewards") is not None
    assert numpy.shares_memory(batch.array("rewards"), rewards)


def test_arrays_that_torch_cannot_share_are_copied() -> None:
    constant = numpy.broadcast_to(numpy.float32(1), (3,))
    batch = Batch({"returns": numpy.arange(3)[::-1], "constant": constant})
    assert batch["returns"].tolist() == [2, 1, 0]
    assert batch["constant"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "column", [numpy.array(["a", "b"]), numpy.ones(2, numpy.dtype("f4").newbyteorder())]
)
def test_a_column_that_torch_cannot_read_is_refused_by_name(column: Any) -> None:
    with pytest.raises(RequestError, match="column 'names' of the batch cannot become a tensor"):
        Batch({"names": column})["names"]


def test_rows_are_counted_in_columns_and_not_in_tables_of_fragments() -> None:
    assert rollout().rows == 5
    assert Batch({"fragments": torch.tensor([[0, 2]]), "x": torch.zeros(2)}).rows == 2


def test_each_fragment_is_extended_by_its_final_observation() -> None:
    extended = rollout().extended()
    assert extended["observations"][:, 0].tolist() == [0, 1, 2, -1, 3, 4, -2]
    assert extended["fragments"].tolist() == [[0, 4], [4, 7]]
    assert extended["state"]["h"].tolist() == [[10.0], [20.0]]


def test_one_pass_over_the_extension_gives_values_and_next_values() -> None:
    extended = rollout().extended()
    values, following = extended.split(extended["observations"][:, 0] * 10)
    assert values.tolist() == [0, 10, 20, 30, 40]
    assert following.tolist() == [10, 20, -10, 40, -20]


def test_nested_observations_are_extended_alike() -> None:
    batch = Batch(
        {
            "observations": {"a": torch.tensor([1, 2]), "b": (torch.tensor([[3.0], [4.0]]),)},
            "fragments": torch.tensor([[0, 1], [1, 2]]),
            "final_observations": {"a": torch.tensor([8, 9]), "b": (torch.tensor([[0.0], [5.0]]),)},
        }
    )
    observations = batch.extended()["observations"]
    assert observations["a"].tolist() == [1, 8, 2, 9]
    assert observations["b"][0][:, 0].tolist() == [3.0, 0.0, 4.0, 5.0]


def test_a_batch_without_final_observations_cannot_be_extended() -> None:
    batch = Batch({"observations": torch.zeros(2), "fragments": torch.tensor([[0, 2]])})
    with pytest.raises(RequestError, match="without 'final_observations' cannot be extended"):
        batch.extended()


@given(rows=st.integers(1, 40), size=st.integers(1, 50), seed=st.integers(0, 5))
def test_every_row_is_in_exactly_one_minibatch_of_an_epoch(rows: int, size: int, seed: int) -> None:
    batch = Batch({"x": torch.arange(rows), "y": torch.arange(rows) * 10})
    parts = list(minibatches(batch, size, torch.Generator().manual_seed(seed)))
    assert sorted(torch.cat([part["x"] for part in parts]).tolist()) == list(range(rows))
    assert all(torch.equal(part["x"] * 10, part["y"]) for part in parts)
    assert all(part.rows == size for part in parts[:-1])


def test_minibatches_of_an_epoch_are_views_of_one_gather() -> None:
    batch = Batch({"x": torch.arange(8)})
    first, second = minibatches(batch, 4, torch.Generator())
    storage = first["x"].untyped_storage().data_ptr()
    assert second["x"].untyped_storage().data_ptr() == storage
    assert storage != batch["x"].untyped_storage().data_ptr()


def test_nested_columns_are_shuffled_together() -> None:
    x = torch.arange(6)
    batch = Batch({"x": x, "o": {"a": x * 2, "b": (x * 3,)}})
    for part in minibatches(batch, 4, torch.Generator().manual_seed(1)):
        assert torch.equal(part["o"]["a"], part["x"] * 2)
        assert torch.equal(part["o"]["b"][0], part["x"] * 3)


@given(size=st.integers(1, 12), seed=st.integers(0, 5))
def test_fragments_are_never_cut_apart(size: int, seed: int) -> None:
    lengths = [3, 1, 4, 2]
    stops = torch.tensor(lengths).cumsum(0)
    starts = stops - torch.tensor(lengths)
    batch = Batch(
        {
            "x": torch.arange(10),
            "fragments": torch.stack((starts, stops), 1),
            "final_observations": stops,
            "state": {"h": starts},
        }
    )
    seen: list[int] = []
    parts = minibatches(batch, size, torch.Generator().manual_seed(seed), whole_fragments=True)
    for part in parts:
        part.check()
        for n, (start, stop) in enumerate(part["fragments"].tolist()):
            rows = part["x"][start:stop].tolist()
            assert rows == list(range(rows[0], rows[0] + len(rows)))
            assert part["state"]["h"][n] == rows[0]
            assert part["final_observations"][n] == rows[-1] + 1
            seen += rows
    assert sorted(seen) == list(range(10))


def shuffled(seed: int, *, whole_fragments: bool) -> list[int]:
    """The order of ten rows, or of ten fragments of one row, in minibatches of two."""
    spans = torch.stack((torch.arange(10), torch.arange(1, 11)), 1)
    batch = Batch({"x": torch.arange(10), "fragments": spans})
    if not whole_fragments:
        batch = Batch({"x": torch.arange(10)})
    generator = torch.Generator().manual_seed(seed)
    parts = minibatches(batch, 2, generator, whole_fragments=whole_fragments)
    return [row for part in parts for row in part["x"].tolist()]


@pytest.mark.parametrize("whole_fragments", [False, True])
def test_the_order_of_an_epoch_is_drawn_from_the_generator_that_was_given(
    whole_fragments: bool,
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = shuffled(0, whole_fragments=whole_fragments)
        torch.manual_seed(2)
        assert shuffled(0, whole_fragments=whole_fragments) == first
    assert shuffled(1, whole_fragments=whole_fragments) != first
    assert first != sorted(first)


def test_slices_and_rows_are_selected_from_all_columns() -> None:
    batch = rollout()
    assert batch.select(slice(1, 3))["rewards"].tolist() == [1.0, 2.0]
    assert batch.select(torch.tensor([4, 0]))["observations"][:, 0].tolist() == [4.0, 0.0]
    assert "fragments" not in batch.select(slice(0, 2))


def test_only_fractional_columns_change_their_format() -> None:
    batch = Batch({"x": numpy.zeros(2), "n": torch.tensor([1, 2]), "o": {"f": torch.zeros(2)}})
    moved = batch.to(torch.device("cpu"), torch.float64)
    assert moved["x"].dtype == moved["o"]["f"].dtype == torch.float64
    assert moved["n"].dtype == torch.int64
    assert batch.to(torch.device("cpu"), torch.float32)["x"].dtype == torch.float32


def test_replacing_a_column_leaves_the_batch_as_it_was() -> None:
    batch = Batch({"x": torch.zeros(2)})
    assert batch.with_columns({"x": torch.ones(2)})["x"].tolist() == [1.0, 1.0]
    assert batch["x"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": torch.zeros(3), "y": torch.zeros(2)}, r"'y' .* shape \(2,\), but 'x' has 3 rows"),
        ({"x": torch.zeros(3), "y": torch.zeros(())}, r"'y' .* shape \(\), but 'x' has 3 rows"),
        ({"x": torch.zeros(3), "o": {"a": torch.zeros(4)}}, r"'o' .* shape \(4,\)"),
        ({"x": [1.0, 2.0]}, "'x' of the batch holds a list"),
        ({"x": torch.zeros(2), "y": {"a": [1.0, 2.0]}}, "'y' of the batch holds a list"),
        ({"x": torch.zeros(0)}, "the batch has no rows"),
        ({}, "the batch has no rows"),
        ({"x": torch.zeros(3), "final_observations": torch.zeros(1)}, "but no 'fragments'"),
        (
            {
                "x": torch.zeros(3),
                "fragments": torch.tensor([[0, 3]]),
                "state": {"h": torch.zeros(2)},
            },
            "'state' .* 2 rows for 1 fragments",
        ),
        ({"x": torch.zeros(3), "fragments": torch.tensor([[0, 2]])}, "must cover its 3 rows"),
        (
            {"x": torch.zeros(3), "fragments": torch.tensor([[0, 2], [1, 3]])},
            "must cover its 3 rows",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(columns: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Batch(columns).check()
