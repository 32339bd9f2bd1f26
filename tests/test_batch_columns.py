"""Columns of batches: how they are nested, which are moved, and how episodes become columns."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

import numpy
import pytest
import torch

from rlplug.batch import Batch, minibatches
from rlplug.batch.episodes import Episode, batches_of
from rlplug.batch.nested import copied, first_leaf, leaves, to_arrays, to_tensors, tree_map
from rlplug.errors import RequestError

CPU, META = torch.device("cpu"), torch.device("meta")

# -- nested columns -----------------------------------------------------------------------------

NESTED = {
    "a": numpy.array([1, 2]),
    "b": (torch.tensor([3.0]), MappingProxyType({"c": numpy.array([4])})),
}


def test_the_leaves_of_a_column_come_in_its_order() -> None:
    assert [leaf.tolist() for leaf in leaves(NESTED)] == [[1, 2], [3.0], [4]]
    assert first_leaf(NESTED) is NESTED["a"]
    assert first_leaf((NESTED["b"],)) is NESTED["b"][0]
    assert first_leaf(NESTED["a"]) is NESTED["a"]


def test_columns_become_tensors_or_arrays_and_stay_nested() -> None:
    tensors = to_tensors(NESTED)
    assert [type(leaf) for leaf in leaves(tensors)] == [torch.Tensor] * 3
    assert tensors["b"][0] is NESTED["b"][0]
    arrays = to_arrays(NESTED)
    assert [type(leaf) for leaf in leaves(arrays)] == [numpy.ndarray] * 3
    assert arrays["a"] is NESTED["a"]
    for made in (tensors, arrays):
        assert (type(made), type(made["b"]), type(made["b"][1])) == (dict, tuple, dict)
        assert [leaf.tolist() for leaf in leaves(made)] == [[1, 2], [3.0], [4]]
    # Also of what is trained.
    assert to_arrays(torch.nn.Parameter(torch.ones(2))).tolist() == [1.0, 1.0]
    # What is neither is handed on.
    assert to_arrays((1.5, None)) == (1.5, None)


def test_a_change_is_made_to_leaves_that_are_nested_alike() -> None:
    ten = tree_map(lambda leaf: leaf * 10, NESTED)
    added = tree_map(lambda one, other: one + other, NESTED, ten)
    assert [leaf.tolist() for leaf in leaves(added)] == [[11, 22], [33.0], [44]]
    assert tree_map(lambda leaf: leaf + 1, (1, {"x": 2})) == (2, {"x": 3})


def test_copies_share_no_memory() -> None:
    for leaf in (numpy.zeros(2), torch.zeros(2)):
        other = copied(leaf)
        other[0] = 1
        assert (type(other), leaf[0].item()) == (type(leaf), 0.0)


# -- devices and formats ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "dtype", "stays"),
    [
        (numpy.zeros(2, numpy.float32), torch.float32, True),
        (numpy.zeros(2, numpy.float64), torch.float32, False),
        (numpy.zeros(2, numpy.float64), torch.float64, True),
        (numpy.zeros(2, numpy.float16), torch.float32, False),
        (numpy.zeros(2, numpy.int64), torch.float32, True),
        (numpy.zeros(2, bool), torch.float64, True),
        (numpy.zeros(2, numpy.float16), None, True),
        (torch.zeros(2), torch.float32, True),
        (torch.zeros(2), torch.float64, False),
        (torch.zeros(2, dtype=torch.int64), torch.float32, True),
        (torch.zeros(2), None, True),
        ({"a": numpy.zeros(2, numpy.float32), "b": (torch.zeros(2),)}, torch.float32, True),
        ({"a": numpy.zeros(2, numpy.float32), "b": (torch.zeros(2),)}, torch.float64, False),
    ],
)
def test_only_what_does_not_fit_is_moved(column: Any, dtype: Any, stays: bool) -> None:
    batch = Batch({"x": column, "n": torch.tensor([1, 2])})
    batch.check()
    moved = batch.to(CPU, dtype)
    assert (moved is batch) == stays
    assert (moved.columns["x"] is column) == stays
    assert moved.columns["n"] is batch.columns["n"]
    if not stays:
        assert {leaf.dtype for leaf in leaves(moved["x"])} == {dtype}


@pytest.mark.parametrize("column", [numpy.zeros(2, numpy.float32), torch.zeros(2)])
def test_all_columns_are_moved_to_another_device(column: Any) -> None:
    moved = Batch({"x": column, "n": numpy.array([1, 2])}).to(META, torch.float64)
    assert {name: (moved[name].device, moved[name].dtype) for name in moved} == {
        "x": (META, torch.float64),
        "n": (META, torch.int64),
    }
    assert moved.to(META, torch.float64) is moved


# -- batches ------------------------------------------------------------------------------------


def test_a_batch_shows_the_shapes_of_its_columns_and_counts_them() -> None:
    batch = Batch({"x": torch.zeros(3, 2), "o": {"a": torch.zeros(3), "b": torch.zeros(3, 1)}})
    assert repr(batch) == "Batch(x (3, 2), o (3,) + (3, 1))"
    assert (len(batch), list(batch), "x" in batch, "y" in batch) == (2, ["x", "o"], True, False)
    assert (batch.rows, Batch({}).rows, Batch({"fragments": torch.zeros(1, 2)}).rows) == (3, 0, 0)
    assert list(batch.without(frozenset(("x",)))) == ["o"]


@pytest.mark.parametrize(
    "ends",
    [
        numpy.zeros(2, numpy.int64),
        torch.zeros(2, dtype=torch.uint8),
        torch.zeros(2),
        [False, True],
        {"a": numpy.zeros(2, bool)},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_ends_are_booleans(name: str, ends: Any) -> None:
    found = getattr(ends, "dtype", type(ends).__name__)
    said = f"column {name!r} of the batch holds {found}, not booleans."
    with pytest.raises(RequestError, match=re.escape(said)):
        Batch({"rewards": torch.zeros(2), name: ends}).check()
    for booleans in (numpy.zeros(2, bool), torch.zeros(2, dtype=torch.bool)):
        Batch({"rewards": torch.zeros(2), name: booleans}).check()


def test_a_column_that_does_not_fit_is_found_also_after_the_others_were_checked() -> None:
    batch = Batch({"x": torch.zeros(3)})
    batch.check()
    batch.with_columns({"y": numpy.zeros(3)}).check()
    for bad in (torch.zeros(2), torch.zeros(()), {"a": torch.zeros(2)}, [1.0, 2.0, 3.0]):
        for moved in (False, True):
            longer = batch.to(CPU, torch.float64) if moved else batch
            with pytest.raises(RequestError, match="column 'y' of the batch"):
                longer.with_columns({"y": bad}).check()
    with pytest.raises(RequestError, match=r"'fragments' of the batch must cover its 3 rows"):
        batch.with_columns({"fragments": torch.tensor([[0, 2]])}).check()


@pytest.mark.parametrize(
    "fragments",
    [
        [[1, 3]],
        [[0, 1], [2, 3]],
        [[0, 1], [1, 1], [1, 3]],
        [[0, 4]],
        [[0, 2], [2, 1], [1, 3]],
    ],
)
def test_fragments_that_leave_a_gap_or_are_empty_are_refused(fragments: Any) -> None:
    Batch({"x": torch.zeros(3), "fragments": torch.tensor([[0, 1], [1, 3]])}).check()
    with pytest.raises(RequestError, match="one after the other") as raised:
        Batch({"x": torch.zeros(3), "fragments": torch.tensor(fragments)}).check()
    assert raised.value.hints == (f"found {fragments}",)
    with pytest.raises(RequestError, match="must cover its 3 rows"):
        Batch({"x": torch.zeros(3), "fragments": torch.zeros(0, 2)}).check()
    with pytest.raises(RequestError, match="must cover its 3 rows"):
        Batch({"x": torch.zeros(3), "fragments": torch.tensor([0, 3])}).check()


def fragmented(*lengths: int) -> Batch:
    stops = torch.tensor(lengths).cumsum(0)
    spans = torch.stack((stops - torch.tensor(lengths), stops), 1)
    return Batch({"x": torch.arange(sum(lengths)), "fragments": spans})


def sizes(batch: Batch, size: int, **more: Any) -> list[int]:
    return [part.rows for part in minibatches(batch, size, torch.Generator(), **more)]


def test_rows_are_taken_one_by_one_unless_fragments_are_wanted_whole() -> None:
    assert sizes(fragmented(4, 4), 3) == [3, 3, 2]
    assert sizes(fragmented(4, 4), 3, whole_fragments=True) == [4, 4]
    assert sizes(Batch({"x": torch.arange(8)}), 3, whole_fragments=True) == [3, 3, 2]


def test_a_rest_of_less_than_half_a_minibatch_joins_the_one_before() -> None:
    # Of nine rows in nine fragments: 4 + 5, for one row is less than two.
    assert sizes(fragmented(*[1] * 9), 4, whole_fragments=True) == [4, 5]
    assert sizes(fragmented(*[1] * 10), 4, whole_fragments=True) == [4, 4, 2]
    assert sizes(fragmented(*[1] * 8), 4, whole_fragments=True) == [4, 4]


def test_all_rows_in_their_order_are_one_minibatch_for_sizes_that_split_nothing() -> None:
    batch = fragmented(2, 2)
    for size in (0, 4, 5):
        assert list(minibatches(batch, size, torch.Generator())) == [batch]


# -- episodes -----------------------------------------------------------------------------------


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


def test_episodes_become_one_batch_with_a_fragment_each() -> None:
    episodes = [
        episode(0, 3, terminated=True, extras={"log_prob": [0.1, 0.2, 0.3]}),
        episode(10, 1, truncated=True, extras={"log_prob": [0.4]}),
        episode(20, 2, extras={"log_prob": [0.5, 0.6]}),
    ]
    (batch,) = batches_of(episodes).values()
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


def test_states_are_stacked_and_modules_kept_apart() -> None:
    state = {"h": numpy.array([1.0, 2.0])}
    batches = batches_of(
        [
            episode(0, 2, state=state, module_id="a"),
            episode(5, 1, module_id="b"),
            episode(7, 1, state={"h": numpy.array([3.0, 4.0])}, module_id="a"),
        ]
    )
    assert list(batches) == ["a", "b"]
    assert batches["a"]["state"]["h"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert batches["b"]["observations"]["near"].tolist() == [5]


@pytest.mark.parametrize(
    ("episodes", "said"),
    [
        ([], "there are no episodes to learn from"),
        ([episode(0, 1), episode(0, 0, module_id="b")], "an episode of module 'b' has no steps"),
        (
            [episode(0, 1, state={"h": numpy.zeros(1)}), episode(0, 1)],
            "1 of 2 episodes have a state",
        ),
        (
            [episode(0, 1, extras={"a": [1]}), episode(0, 1, extras={"b": [1]})],
            r"module 'default' have different extras: \['a'\] and \['b'\]",
        ),
    ],
)
def test_episodes_that_do_not_go_together_are_refused(episodes: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        batches_of(episodes)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_ends_of_episodes_are_booleans_of_any_kind_and_nothing_else(end: str) -> None:
    for value in (True, numpy.True_, numpy.array(True), torch.tensor(True)):
        (batch,) = batches_of([episode(0, 2, **{end: value})]).values()
        assert batch[end].tolist() == [False, True]
    for wrong in ("False", 0.5, 1, None, numpy.array([False, False]), torch.tensor(1)):
        with pytest.raises(RequestError, match=f"'{end}' of an episode of module 'm' is "):
            episode(0, 2, module_id="m", **{end: wrong})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("final_observation", None),
        ("final_observation", {"near": None, "pair": (numpy.zeros(1),)}),
        ("final_observation", {"near": numpy.zeros(1), "pair": (numpy.zeros(1),)}),
        ("final_observation", {"pair": (numpy.zeros(1),)}),
        ("rewards", numpy.ones((2, 1))),
        ("rewards", None),
        ("actions", None),
    ],
)
def test_a_field_of_an_episode_that_is_no_column_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"'{field}' of an episode of module 'm' cannot be"):
        batches_of([episode(0, 2, module_id="m", **{field: value})])


@pytest.mark.parametrize("given", [episode(0, 2), [3], 3, None])
def test_what_are_no_episodes_is_refused(given: Any) -> None:
    with pytest.raises(RequestError, match=r"^episodes (is|has) a"):
        batches_of(given)


def test_episodes_leave_the_graph_of_their_tensors() -> None:
    seen = torch.zeros(2, requires_grad=True)
    (batch,) = batches_of(
        [episode(0, 2, observations=seen, final_observation=torch.zeros(()))]
    ).values()
    assert not batch["observations"].requires_grad
