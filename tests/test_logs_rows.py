"""Rows of a log: roles, types, spaces and parts, and what files must have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.errors import ConfigError, RequestError
from rlplug.logs import LogRows
from rlplug.logs.recording import Recording
from tests.log_files import columns, opened, write

INFINITY = numpy.inf


def rows_of(**table: Any) -> LogRows:
    given = {name: numpy.array(column) for name, column in table.items()}
    return LogRows(first=0, columns=given, observation_space=spaces.Box(0, 1, (1,)))


def test_parts_know_their_first_row_and_places_may_be_taken_in_any_order() -> None:
    rows = rows_of(action=[3, 4, 5, 6], reward=[0.5, 1.5, 2.5, 3.5])
    part = rows.part(1, 4).part(1, 2)
    assert (part.first, len(part), part["action"].tolist()) == (2, 1, [5])
    taken = rows.take(numpy.array([3, 0, 0]))
    assert (taken["action"].tolist(), taken["reward"].tolist()) == ([6, 3, 3], [3.5, 0.5, 0.5])
    assert (rows.get("weight"), rows.get("reward")) == (None, rows["reward"])


def test_without_propensities_arms_that_were_present_are_as_likely() -> None:
    rows = rows_of(action=[0, 0], reward=[0.0, 0.0])
    assert rows.propensity_or_uniform(4).tolist() == [0.25, 0.25]
    rows = rows_of(action=[0] * 3, reward=[0.0] * 3, action_mask=[[1, 0, 0], [1, 1, 0], [1, 0, 9]])
    assert rows.propensity_or_uniform(3).tolist() == [1.0, 0.5, 0.5]


def test_what_is_chosen_from_is_a_space(tmp_path: Path) -> None:
    """Contexts, features of arms, a mask and names of arms, each alone or with the others."""
    path, chosen = tmp_path / "log.parquet", {"action": [0, 1], "reward": [0.0, 1.0]}
    parts = {
        "context": ([0.5, 1.5], spaces.Box(-INFINITY, INFINITY, (1,), numpy.float64)),
        "arms": (
            [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]] * 2,
            spaces.Box(-INFINITY, INFINITY, (3, 2), numpy.float64),
        ),
        "action_mask": ([[1, 1, 0]] * 2, spaces.MultiBinary(3)),
    }
    for name, (values, space) in parts.items():
        log = opened(write(path, {**chosen, name: values}))
        expected: Any = space if name == "context" else spaces.Dict({name: space})
        assert log.observation_space == expected
        assert log.num_arms == (2 if name == "context" else 3)
        assert log.action_space == spaces.Discrete(log.num_arms)
    log = opened(write(path, {**chosen, **{name: one[0] for name, one in parts.items()}}))
    assert log.observation_space == spaces.Dict({name: one[1] for name, one in parts.items()})
    seen = log.whole().observations
    assert log.observation_space.contains({name: column[1] for name, column in seen.items()})
    log = opened(write(path, chosen))
    assert log.observation_space == spaces.Box(-INFINITY, INFINITY, (0,), numpy.float64)
    assert log.whole().observations.shape == (2, 0)
    log = opened(write(path, {**chosen, "action": [[0.5, 0.0, 1.0], [1.5, 2.0, 3.0]]}))
    assert (log.num_arms, log.first_action) == (0, 0)
    assert log.action_space == spaces.Box(-INFINITY, INFINITY, (3,), numpy.float32)


def test_columns_have_the_types_of_runs(tmp_path: Path) -> None:
    table = {
        "context": [1, 2],
        "next_context": [2, 3],
        "action": numpy.array([0, 1], numpy.int8),
        "action_mask": [[True, True], [False, True]],
        "reward": [True, False],
        "weight": numpy.array([1, 2], numpy.float32),
        "position": [3, 4],
        "episode": [8, 9],
        "terminated": [0, 1],
        "truncated": [False, True],
    }
    rows = opened(write(tmp_path / "log.parquet", table)).whole()
    assert {name: str(column.dtype) for name, column in rows.columns.items()} == {
        "context": "float64",
        "next_context": "float64",
        "action": "int64",
        "action_mask": "int8",
        "reward": "float64",
        "weight": "float32",
        "position": "int64",
        "episode": "int64",
        "terminated": "bool",
        "truncated": "bool",
    }
    for name in ("action_mask", "terminated", "reward"):
        assert rows[name].tolist() == table[name], name
    assert rows["next_context"].tolist() == [[2.0], [3.0]]


def test_the_number_of_arms_is_the_highest_of_all_files_unless_it_is_said(tmp_path: Path) -> None:
    chosen = {"context": [0.0, 1.0], "reward": [0.0, 1.0]}
    one = write(tmp_path / "a.parquet", {**chosen, "action": [0, 4]})
    two = write(tmp_path / "b.csv", {**chosen, "action": [5, 1]})
    zero = write(tmp_path / "c.npz", {**chosen, "action": [0, 0]})
    assert [opened(path).num_arms for path in (one, two, zero)] == [5, 6, 2]
    log = opened(one, zero, two)
    assert (log.num_arms, log.rows) == (6, 6)
    assert opened(one, num_arms=9).num_arms == 9
    with pytest.raises(RequestError, match="'action' is 5, the arms are 0 to 4"):
        opened(one, two, num_arms=5).whole()
    # Identifiers are above ten thousand, and above the number of rows.
    many = {"context": numpy.zeros(2), "reward": numpy.zeros(2)}
    assert opened(write(one, {**many, "action": [0, 9_999]})).num_arms == 10_000
    with pytest.raises(RequestError) as raised:
        opened(write(one, {**many, "action": [0, 10_000]}))
    assert raised.value.message == (
        "column 'action' holds 10,000, the log has 2 rows: arms are numbered from 0."
    )
    large = {name: numpy.zeros(10_002, int) for name in ("context", "action", "reward")}
    large["action"][0] = 10_001
    assert opened(write(two.with_suffix(".npz"), large)).num_arms == 10_002


@pytest.mark.parametrize(
    ("beside", "is_bandit"),
    [
        ({}, True),
        ({"position": [0, 1]}, True),
        ({"episode": [0, 1]}, False),
        ({"terminated": [True, True]}, False),
        ({"truncated": [True, True]}, False),
        ({"next_context": [0.0, 1.0]}, False),
    ],
)
def test_rows_that_follow_each_other_are_no_bandit(
    tmp_path: Path, beside: dict[str, Any], is_bandit: bool
) -> None:
    table = {"context": [0.0, 1.0], "action": [0, 1], "reward": [0.0, 1.0], **beside}
    assert opened(write(tmp_path / "log.parquet", table)).is_bandit == is_bandit


def test_a_log_says_what_it_has(tmp_path: Path) -> None:
    table = {"context": [0.0, 1.0], "action": [0, 1], "reward": [0.0, 1.0]}
    path = write(tmp_path / "clicks-1.parquet", table)
    plain = opened(path)
    assert not plain.has_propensities
    assert set(plain.roles.columns) == {"context", "action", "reward"}
    for role, values in (
        ("propensity", [0.5, 0.5]),
        ("propensities", [[0.5, 0.5]] * 2),
        ("action_log_prob", [-0.5, -0.5]),
    ):
        told = write(tmp_path / "told.npz", {**table, role: values})
        assert opened(told).has_propensities, role
    other = write(tmp_path / "clicks-2.parquet", table, compression="none")
    log = opened(tmp_path / "clicks-*.parquet")
    assert log.name == "clicks-"
    assert log.paths == (str(path), str(other))
    assert log.fingerprint() == [
        ["clicks-1.parquet", 2, path.stat().st_size],
        ["clicks-2.parquet", 2, other.stat().st_size],
    ]
    assert opened(tmp_path / "*.parquet").name == "log"


@pytest.mark.parametrize(
    ("table", "options", "told"),
    [
        # Columns named arms_ARM_FEATURE, or a number of arms from anywhere.
        ({f"arms_{arm}_{one}": [10 * arm + one] for arm in range(2) for one in range(3)}, {},
         [[0, 1, 2], [10, 11, 12]]),
        ({"arms": [[0, 1, 2, 10, 11, 12]], "action_mask": [[1, 1]]}, {},
         [[0, 1, 2], [10, 11, 12]]),
        ({"arms": [[0, 1, 2, 10, 11, 12]]}, {"num_arms": 2}, [[0, 1, 2], [10, 11, 12]]),
        ({"arms": [[0, 1, 2, 10, 11, 12]], "action_mask": [[1, 1, 1]]}, {},
         [[0, 1], [2, 10], [11, 12]]),
    ],
)  # fmt: skip
def test_features_are_split_among_the_arms(
    tmp_path: Path, table: dict[str, Any], options: dict[str, Any], told: list[Any]
) -> None:
    path = write(tmp_path / "log.parquet", {**table, "action": [1], "reward": [1.0]})
    log = opened(path, **options)
    assert log.whole()["arms"][0].tolist() == told
    assert log.num_arms == len(told)


def test_features_that_cannot_be_split_among_the_arms_are_refused(tmp_path: Path) -> None:
    table = {"arms": [[0.0, 1.0, 2.0]], "action": [1], "reward": [1.0]}
    path = write(tmp_path / "log.parquet", table)
    with pytest.raises(RequestError) as raised:
        opened(path)
    assert raised.value.message == (
        "log.parquet: 3 features of arms cannot be split among an unknown number of arms."
    )
    assert "data.num_arms=N" in raised.value.hints[0]
    write(path, {**table, "action_mask": [[1, 1]]})
    with pytest.raises(RequestError, match=r"3 features of arms cannot be split among 2 arms\."):
        opened(path)


def test_batches_join_the_ends_of_files_and_blocks(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"{name}.parquet", columns(rows=rows), row_group_size=4)
        for name, rows in (("a", 7), ("b", 1), ("c", 6))
    ]
    log = opened(*paths)
    expected = [*range(7), 0, *range(6)]
    for first in (0, 3, 6, 7, 8, 13):
        for size in (1, 2, 5, 14, 20):
            batches = list(log.read(first, size))
            left = 14 - first
            sizes = [size] * (left // size) + [left % size] * (left % size > 0)
            assert [len(batch) for batch in batches] == sizes
            assert [batch.first for batch in batches] == list(range(first, 14, size))
            read = numpy.concatenate([batch["context"][:, 0] for batch in batches])
            assert read.tolist() == expected[first:]
    assert list(log.read(14, 2)) == []
    assert len(log.whole()) == 14


def test_files_may_differ_in_the_kind_of_number_but_not_in_their_columns(tmp_path: Path) -> None:
    table = {"context": [0.5, 1.5], "action": [0, 1], "reward": [0.5, 1.5]}
    one, two = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write(one, table)
    write(two, {**table, "reward": [2, 3], "unread": ["a", "b"]})
    assert opened(one, two).whole()["reward"].tolist() == [0.5, 1.5, 2.0, 3.0]
    write(two, {**table, "reward": [True, False]})
    with pytest.raises(RequestError) as raised:
        opened(one, two)
    assert raised.value.message == (
        "data.reward is reward (booleans) in b.parquet, reward (numbers) in a.parquet."
    )
    write(two, {**table, "context": [[0.5], [1.5]]})
    with pytest.raises(
        RequestError, match=r"is context \(lists of numbers\) in b.parquet, context \(n"
    ):
        opened(one, two)
    write(two, {**table, "weight": [1.0, 1.0]})
    with pytest.raises(RequestError) as raised:
        opened(one, two)
    assert raised.value.message == (
        "data.weight is weight (numbers) in b.parquet, missing in a.parquet."
    )
    write(one, {**table, "context": [[0.5, 1.0], [1.5, 2.0]]})
    write(two, {**table, "context": [[0.5], [1.5]]})
    with pytest.raises(RequestError) as raised:
        opened(one, two).whole()
    assert raised.value.message == ("the log has values of shape (1,), others have (2,).")


def test_observations_of_a_recording_have_the_shape_of_its_space(tmp_path: Path) -> None:
    """Numbers and images: columns hold what spaces describe."""
    for space, seen in (
        (spaces.Discrete(4), numpy.array([3, 1])),
        (spaces.Box(0, 255, (2, 2), numpy.uint8), numpy.arange(8, dtype=numpy.uint8)),
    ):
        folder = tmp_path / type(space).__name__
        recording = Recording(folder, space, spaces.Box(-1.0, 1.0, (3, 2)))
        recording.start()
        shaped = seen.reshape(2, *(space.shape or ()))
        actions = numpy.linspace(-1, 1, 12, dtype=numpy.float32).reshape(2, 3, 2)
        recording.add(shaped, {"action": actions, "reward": numpy.zeros(2)})
        recording.flush()
        log = opened(folder)
        assert (log.observation_space, log.num_arms) == (space, 0)
        assert log.action_space == spaces.Box(-1.0, 1.0, (3, 2))
        rows = log.whole()
        assert rows["context"].dtype == space.dtype
        assert rows["context"].tolist() == shaped.tolist()
        assert rows["action"].tolist() == actions.tolist()


@pytest.mark.parametrize(
    ("table", "options", "told"),
    [
        ({"context": ["a", "b"]}, {},
         "data.context   column 'context' of log.parquet holds string, not numbers"),
        ({"action": [True, False]}, {},
         "data.action   column 'action' of log.parquet holds bool, not numbers"),
        ({"position": [0.5, 1.5]}, {},
         "column 'position' of log.parquet holds double, not whole numbers"),
        ({"reward": [[0.5, 1.5]] * 2}, {},
         "data.reward   column 'reward' of log.parquet holds lists"),
        ({"context_1": [[0.0], [1.0]], "context_2": [0.0, 1.0]}, {},
         "one column of lists, or columns of numbers: 'context_1' has both"),
        ({}, {"weight": "w*"}, "data.weight   no column 'w*' in log.parquet"),
        ({}, {"reward": "rewrd"}, "no column 'rewrd' in log.parquet, did you mean 'reward'?"),
    ],
)  # fmt: skip
def test_columns_that_cannot_have_their_role_are_told(
    tmp_path: Path, table: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    table = {"action": [0, 1], "reward": [0.0, 1.0], **table}
    with pytest.raises(ConfigError) as raised:
        opened(write(tmp_path / "log.parquet", table), **options)
    assert told in str(raised.value)
    assert f"columns of log.parquet: {', '.join(table)}" in str(raised.value)


def test_many_problems_and_columns_are_told_in_part(tmp_path: Path) -> None:
    table: dict[str, Any] = {f"context_{one}": ["a"] for one in range(11)}
    table |= {"action": [0], "reward": [1.0]}
    with pytest.raises(ConfigError) as raised:
        opened(write(tmp_path / "log.parquet", table))
    told = str(raised.value)
    assert told.count("not numbers") == 3
    assert told.endswith(f"columns of log.parquet: {', '.join(list(table)[:12])}, …")
    del table["context_10"]
    with pytest.raises(ConfigError) as raised:
        opened(write(tmp_path / "log.parquet", table))
    assert str(raised.value).endswith(f"columns of log.parquet: {', '.join(table)}")


def test_patterns_take_all_columns_of_vectors_and_the_first_of_others(tmp_path: Path) -> None:
    table = {
        "x[10]": [10.0],
        "x[9]": [9.0],
        "y10b": [3.0],
        "y10a": [2.0],
        "y": [1.0],
        "r_b": [5.0],
        "r_a": [6.0],
        "action": [0],
    }
    path = write(tmp_path / "log.parquet", table)
    log = opened(path, context="x[*", reward="r_*")
    assert log.roles.columns["context"] == ("x[9]", "x[10]")
    assert log.roles.columns["reward"] == ("r_b",)
    assert "weight" not in log.roles
    log = opened(path, context="y*", reward="r_a")
    assert log.whole()["context"].tolist() == [[1.0, 2.0, 3.0]]
    # One column may have two roles.
    log = opened(path, context="y", label="y", reward="r_a")
    assert log.whole()["label"].tolist() == [1.0]
