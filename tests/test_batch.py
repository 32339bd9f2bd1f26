"""Batches: columns, side tables, extension, minibatches, and how episodes become batches."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplug.batch import Batch, minibatches
from rlplug.batch.episodes import Episode, batches_of
from rlplug.batch.nested import leaves
from rlplug.errors import RequestError

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize(
    ("column", "dtype", "stays"),
    [
        (numpy.zeros(2, numpy.float32), torch.float32, True),
        (numpy.zeros(2, numpy.float64), torch.float32, False),
        (numpy.zeros(2, numpy.int64), torch.float32, True),
        (torch.zeros(2), torch.float32, True),
        (torch.zeros(2), torch.float64, False),
        (torch.zeros(2, dtype=torch.int64), torch.float32, True),
        ({"a": numpy.zeros(2, numpy.float32), "b": (torch.zeros(2),)}, torch.float64, False),
    ],
)
def test_only_what_does_not_fit_is_moved(column: Any, dtype: Any, stays: bool) -> None:
    batch = Batch({"x": column, "n": torch.tensor([1, 2])})
    moved = batch.to(CPU, dtype)
    assert (moved is batch) == (moved.columns["x"] is column) == stays
    assert moved.columns["n"] is batch.columns["n"]
    assert not Batch({"x": torch.zeros(2, requires_grad=True)}).to(CPU)["x"].requires_grad
    assert stays or {leaf.dtype for leaf in leaves(moved["x"])} == {dtype}
    meta = batch.to(META, torch.float64)
    assert {leaf.device for name in meta for leaf in leaves(meta[name])} == {meta.device} == {META}
    assert meta.to(META, torch.float64) is meta


def rollout() -> Batch:
    """Two fragments, of 3 and 2 rows; observations count up, final ones are negative."""
    return Batch(
        {
            "fragments": torch.tensor([[0, 3], [3, 5]]),
            "observations": {"a": torch.arange(5.0), "b": (torch.arange(5)[:, None],)},
            "rewards": numpy.arange(5.0),
            "final_observations": {
                "a": torch.tensor([-1.0, -2.0]),
                "b": (torch.zeros(2, 1).long(),),
            },
            "state": {"h": torch.tensor([[10.0], [20.0]])},
        }
    )


def test_a_batch_is_a_mapping_of_columns_with_rows() -> None:
    batch = rollout()
    assert (batch.rows, len(batch), "x" in batch, batch.get("x")) == (5, 5, False, None)
    assert (Batch({}).rows, Batch({"fragments": torch.zeros(1, 2)}).rows) == (0, 0)
    assert repr(batch.select(slice(0, 2))) == "Batch(observations (2,), rewards (2,))"
    assert list(batch.without(frozenset(batch) - {"rewards"})) == ["rewards"]
    assert batch.select(torch.tensor([4, 0]))["rewards"].tolist() == [4.0, 0.0]
    assert batch.select(slice(1, 3))["observations"]["b"][0].tolist() == [[1], [2]]
    assert batch.with_columns({"rewards": torch.ones(5)})["rewards"].tolist() == [1.0] * 5
    assert batch["rewards"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    with pytest.raises(KeyError, match="the batch has no column 'x'"):
        batch["x"]


def test_one_pass_over_the_extension_gives_values_and_next_values() -> None:
    extended = rollout().extended()
    assert extended["observations"]["a"].tolist() == [0, 1, 2, -1, 3, 4, -2]
    assert extended["observations"]["b"][0][:, 0].tolist() == [0, 1, 2, 0, 3, 4, 0]
    assert extended["fragments"].tolist() == [[0, 4], [4, 7]]
    assert extended["state"]["h"].tolist() == [[10.0], [20.0]]
    values, following = extended.split(extended["observations"]["a"] * 10)
    assert values.tolist() == [0, 10, 20, 30, 40]
    assert following.tolist() == [10, 20, -10, 40, -20]
    with pytest.raises(RequestError, match="no column 'final_observations'"):
        rollout().without(frozenset(("final_observations",))).extended()


@given(rows=st.integers(1, 40), size=st.integers(1, 50), seed=st.integers(0, 5))
def test_every_row_is_in_exactly_one_minibatch_of_an_epoch(rows: int, size: int, seed: int) -> None:
    x = torch.arange(rows)
    batch = Batch({"x": x, "y": (x * 10).numpy(), "o": {"a": (x * 2,)}})
    parts = list(minibatches(batch, size, torch.Generator().manual_seed(seed)))
    assert sorted(torch.cat([part["x"] for part in parts]).tolist()) == list(range(rows))
    assert all(torch.equal(part["x"] * 10, part["y"]) for part in parts)
    assert all(torch.equal(part["x"] * 2, part["o"]["a"][0]) for part in parts)
    assert all(part.rows == size for part in parts[:-1])
    assert len({part["x"].untyped_storage().data_ptr() for part in parts}) == 1


def fragmented(*lengths: int) -> Batch:
    stops = torch.tensor(lengths).cumsum(0)
    starts = stops - torch.tensor(lengths)
    columns = {"x": torch.arange(sum(lengths)), "fragments": torch.stack((starts, stops), 1)}
    return Batch({**columns, "final_observations": stops, "state": {"h": starts}})


@given(size=st.integers(1, 12), seed=st.integers(0, 5))
def test_fragments_are_never_cut_apart(size: int, seed: int) -> None:
    seen: list[int] = []
    generator = torch.Generator().manual_seed(seed)
    for part in minibatches(fragmented(3, 1, 4, 2), size, generator, whole_fragments=True):
        part.check()
        for n, (start, stop) in enumerate(part["fragments"].tolist()):
            rows = part["x"][start:stop].tolist()
            assert rows == list(range(rows[0], rows[0] + len(rows)))
            assert part["state"]["h"][n] == rows[0]
            assert part["final_observations"][n] == rows[-1] + 1
            seen += rows
    assert sorted(seen) == list(range(10))


def sizes(batch: Batch, size: int, **more: Any) -> list[int]:
    return [part.rows for part in minibatches(batch, size, torch.Generator(), **more)]


def test_a_rest_of_less_than_half_a_minibatch_of_fragments_joins_the_one_before() -> None:
    assert sizes(fragmented(4, 4), 3) == [3, 3, 2]
    assert sizes(fragmented(4, 4), 3, whole_fragments=True) == [4, 4]
    assert sizes(Batch({"x": torch.arange(8)}), 3, whole_fragments=True) == [3, 3, 2]
    # Of nine rows in nine fragments: 4 + 5, for one row is less than two.
    assert sizes(fragmented(*[1] * 9), 4, whole_fragments=True) == [4, 5]
    assert sizes(fragmented(*[1] * 10), 4, whole_fragments=True) == [4, 4, 2]
    assert sizes(fragmented(*[1] * 8), 4, whole_fragments=True) == [4, 4]
    batch = fragmented(2, 2)
    for size in (0, 4, 5):
        assert list(minibatches(batch, size, torch.Generator())) == [batch]


THREE = torch.zeros(3)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": THREE, "y": torch.zeros(2)}, r"'y' .* of shape \(2,\), not of 3 rows"),
        ({"x": THREE, "o": {"a": torch.zeros(4)}}, r"'o' .* of shape \(4,\)"),
        ({"x": torch.zeros(0)}, "the batch has no rows"),
        ({}, "the batch has no rows"),
        ({"x": THREE, "terminated": torch.zeros(3)}, "'terminated' .* does not hold booleans"),
        ({"x": THREE, "terminated": {"a": numpy.zeros(3, bool)}}, "'terminated' .* booleans"),
        ({"x": THREE, "final_observations": torch.zeros(1)}, "no column 'fragments'"),
        (
            {"x": THREE, "fragments": torch.tensor([[0, 3]]), "state": {"h": torch.zeros(2)}},
            r"'state' .* \(2,\), not of 1 rows",
        ),
        *(
            ({"x": THREE, "fragments": torch.tensor(spans)}, "'fragments' .* cover its 3 rows")
            for spans in ([[0, 2]], [[1, 3]], [[0, 1], [2, 3]], [[0, 1], [1, 1], [1, 3]], [0, 3])
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(columns: Any, message: str) -> None:
    good = Batch({"x": THREE, "terminated": THREE.bool(), "truncated": numpy.zeros(3, bool)})
    good.check()
    with pytest.raises(RequestError, match=message):
        Batch(columns).check()
    if columns.get("x") is THREE and "booleans" not in message:
        # Also after the others were checked, or where they are known to fit.
        for batch in (good, good.to(CPU, torch.float64), Batch({"x": THREE}, 3)):
            with pytest.raises(RequestError, match=message):
                batch.with_columns(columns).check()


def episode(first: int, steps: int, **more: Any) -> Episode:
    """An episode whose observations count up from `first`."""
    numbers = numpy.arange(first, first + steps + 1, dtype=numpy.float32)
    given: dict[str, Any] = {
        "observations": {"near": numbers[:-1], "pair": (numbers[:-1, None],)},
        "final_observation": {"near": numbers[-1], "pair": (numbers[-1:],)},
        "actions": list(range(steps)),
        "rewards": [1.0] * steps,
    }
    return Episode(**{**given, **more})


def test_episodes_become_one_batch_per_module_with_a_fragment_each() -> None:
    batches = batches_of(
        [
            episode(0, 3, terminated=True, extras={"log_prob": [0.1, 0.2, 0.3]}),
            episode(5, 1, state={"h": numpy.array([1.0])}, module_id="b"),
            episode(10, 1, truncated=torch.tensor(True), extras={"log_prob": [0.4]}),
            episode(20, 2, extras={"log_prob": [0.5, 0.6]}),
            episode(7, 1, state={"h": numpy.array([3.0])}, module_id="b"),
        ]
    )
    assert list(batches) == ["default", "b"]
    batch = batches["default"]
    assert batch["observations"]["near"].tolist() == [0, 1, 2, 10, 20, 21]
    assert batch["next_observations"]["near"].tolist() == [1, 2, 3, 11, 21, 22]
    assert batch["next_observations"]["pair"][0].tolist() == [[1], [2], [3], [11], [21], [22]]
    assert batch["final_observations"]["near"].tolist() == [3, 11, 22]
    assert batch["actions"].tolist() == [0, 1, 2, 0, 0, 1]
    assert batch["terminated"].tolist() == [False, False, True, False, False, False]
    assert batch["truncated"].tolist() == [False, False, False, True, False, False]
    assert batch["fragments"].tolist() == [[0, 3], [3, 4], [4, 6]]
    assert batch["log_prob"].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert "state" not in batch
    assert batches["b"]["state"]["h"].tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([], "there are no episodes to learn from"),
        ([episode(0, 1), episode(0, 0, module_id="b")], "an episode of module 'b' has no steps"),
        ([episode(0, 1, state={"h": numpy.zeros(1)}), episode(0, 1)], "'default' differ"),
        ([episode(0, 1, extras={"a": [1]}), episode(0, 1)], "'default' differ in their extras"),
        ([episode(0, 2, actions=[1])], "'actions' of the batch"),
    ],
)
def test_episodes_that_do_not_go_together_are_refused(episodes: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        batches_of(episodes)
