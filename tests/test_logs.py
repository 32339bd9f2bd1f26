"""Logs: files of logged rows, the roles of their columns, and the batches that are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.errors import ConfigError, RequestError
from tests.log_files import columns, opened, write

FORMATS = ("parquet", "csv", "npz")
INFINITY = numpy.inf
PLAIN: dict[str, Any] = {"context": [0.5, 1.5], "action": [0, 1], "reward": [0.5, 1.5]}


@pytest.mark.parametrize("suffix", FORMATS)
def test_formats_hold_the_same_rows_from_any_row_on(tmp_path: Path, suffix: str) -> None:
    options = {"row_group_size": 3} if suffix == "parquet" else {}
    paths = [write(tmp_path / f"{name}.{suffix}", columns(), **options) for name in "ab"]
    log = opened(*paths)
    assert (log.rows, log.num_arms, log.is_bandit) == (20, 3, True)
    assert log.action_space == spaces.Discrete(3)
    assert log.observation_space == spaces.Box(-INFINITY, INFINITY, (2,), numpy.float64)
    rows = log.whole()
    assert rows["context"][3].tolist() == [3.0, 3.5]
    assert rows["action"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0] * 2
    for first in (0, 1, 4, 9, 10, 17):
        batches = list(log.read(first, 4))
        assert [len(batch) for batch in batches[:-1]] == [4] * (len(batches) - 1)
        assert batches[0].first == first
        rewards = numpy.concatenate([batch["reward"] for batch in batches])
        assert rewards.tolist() == [10.0 * (row % 10) for row in range(first, 20)]


# -- roles -----------------------------------------------------------------------------------------


def test_names_and_patterns_find_columns_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    table = {"x[10]": [10.0], "x[9]": [9.0], "y10b": [3.0], "y10a": [2.0], "y": [1.0]}
    path = write(tmp_path / "log.csv", {**table, "r_b": [5.0], "r_a": [6.0], "action": [0]})
    log = opened(path, context="x[*", reward="r_*", num_arms=5)
    assert log.whole()["context"].tolist() == [[9.0, 10.0]]
    # Of several columns of one number, the first; no weight was found.
    assert (log.whole()["reward"].tolist(), log.num_arms) == ([5.0], 5)
    assert set(log.roles.columns) == {"context", "reward", "action"}
    log = opened(path, context="y*", reward="r_a")
    assert log.whole()["context"].tolist() == [[1.0, 2.0, 3.0]]
    # One column may have two roles.
    rows = opened(path, context="y", label="y", reward="r_a").whole()
    assert (rows["context"].tolist(), rows["label"].tolist()) == ([[1.0]], [1.0])


def test_all_missing_columns_are_told_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", columns())
    with pytest.raises(ConfigError) as raised:
        opened(path, action="actoin", reward="click", weight="w*")
    told = str(raised.value)
    assert "3 problems" in told
    assert "no column 'actoin' in log.csv, did you mean 'action'?" in told
    assert "columns of log.csv: context_0, context_1, action, reward, propensity" in told
    table: dict[str, Any] = {f"context_{index}": ["a"] for index in range(11)}
    with pytest.raises(ConfigError) as raised:
        opened(write(tmp_path / "log.parquet", {**table, "action": [0], "reward": [1.0]}))
    assert str(raised.value).count("not numbers") == 3
    assert str(raised.value).endswith(f"{', '.join(table)}, action, …")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"context": ["a", "b"]}, "'context' of log.parquet holds string, not numbers"),
        ({"action": [True, False]}, "'action' of log.parquet holds bool, not numbers"),
        ({"position": [0.5, 1.5]}, "'position' of log.parquet holds double, not whole numbers"),
        ({"reward": [[0.5, 1.5]] * 2}, "data.reward   column 'reward' of log.parquet holds lists"),
        ({"context": [0.0, 1.0], "context_1": [[0.0], [1.0]]},
         "one column of lists, or columns of numbers: 'context_1' has both"),
    ],
)  # fmt: skip
def test_columns_that_cannot_have_their_role_are_told(
    tmp_path: Path, table: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        opened(write(tmp_path / "log.parquet", {**PLAIN, **table}))
    assert told in str(raised.value)


def test_files_may_differ_in_the_kind_of_number_but_not_in_their_columns(tmp_path: Path) -> None:
    one, two = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write(one, PLAIN)
    write(two, {**PLAIN, "reward": [2, 3], "unread": ["a", "b"]})
    assert opened(one, two).whole()["reward"].tolist() == [0.5, 1.5, 2.0, 3.0]
    for changed, told in (
        ({"reward": [True, False]}, "data.reward is reward (booleans) in b.parquet, reward (num"),
        ({"context": [[0.5], [1.5]]}, "data.context is context (lists of numbers) in b.parquet, "),
        ({"context_1": [0.5, 1.5]}, "context (numbers), context_1 (numbers) in b.parquet, context"),
        ({"weight": [1.0, 1.0]}, "data.weight is weight (numbers) in b.parquet, missing in a.par"),
    ):
        write(two, {**PLAIN, **changed})
        with pytest.raises(RequestError) as raised:
            opened(tmp_path)
        assert told in raised.value.message
    write(one, {**PLAIN, "context": [[0.5, 1.0], [1.5, 2.0]]})
    write(two, {**PLAIN, "context": [[0.5], [1.5]]})
    with pytest.raises(RequestError, match=r"log has values of shape \(1,\), others have \(2,\)"):
        opened(one, two).whole()


# -- rows ------------------------------------------------------------------------------------------


def test_what_is_chosen_from_is_a_space(tmp_path: Path) -> None:
    path, chosen = tmp_path / "log.parquet", {"action": [0, 1], "reward": [0.0, 1.0]}
    arms = [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]] * 2
    parts: dict[str, tuple[Any, spaces.Space[Any]]] = {
        "context": ([[1.0], [2.0]], spaces.Box(-INFINITY, INFINITY, (1,), numpy.float64)),
        "arms": (arms, spaces.Box(-INFINITY, INFINITY, (3, 2), numpy.float64)),
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
    assert seen["arms"].tolist() == arms
    assert log.observation_space.contains({name: column[1] for name, column in seen.items()})
    log = opened(write(path, chosen))
    assert log.observation_space == spaces.Box(-INFINITY, INFINITY, (0,), numpy.float64)
    assert log.whole().observations.shape == (2, 0)
    log = opened(write(path, {**chosen, "action": [[0.5, 0.0, 1.0], [1.5, 2.0, 3.0]]}))
    assert (log.num_arms, log.first_action) == (0, 0)
    assert log.action_space == spaces.Box(-INFINITY, INFINITY, (3,), numpy.float32)


def test_columns_have_the_types_of_runs(tmp_path: Path) -> None:
    given: dict[str, tuple[Any, str]] = {
        "context": ([1, 2], "float64"),
        "next_context": (numpy.array([2, 3], numpy.float32), "float64"),
        "action": (numpy.array([0, 1], numpy.int8), "int64"),
        "action_mask": ([[True, True], [False, True]], "int8"),
        "reward": ([True, False], "float64"),
        "weight": (numpy.array([1, 2], numpy.float32), "float32"),
        "position": ([3, 4], "int64"),
        "episode": ([8, 9], "int64"),
        "terminated": ([0, 1], "bool"),
        "truncated": ([False, True], "bool"),
    }
    table = {name: values for name, (values, _) in given.items()}
    rows = opened(write(tmp_path / "log.parquet", table)).whole()
    for name, (values, dtype) in given.items():
        assert rows[name].dtype == dtype, name
        assert rows[name].ravel().tolist() == numpy.ravel(values).tolist(), name
    single = {**PLAIN, "context": numpy.array([1, 2], numpy.float32)}
    log = opened(write(tmp_path / "log.parquet", single))
    assert log.observation_space.dtype == log.whole()["context"].dtype == numpy.float32


def test_the_number_of_arms_is_the_highest_of_all_files_unless_it_is_said(tmp_path: Path) -> None:
    chosen = {"context": [0.0, 1.0], "reward": [0.0, 1.0]}
    one = write(tmp_path / "a.parquet", {**chosen, "action": [0, 4]})
    two = write(tmp_path / "b.csv", {**chosen, "action": [5, 1]})
    zero = write(tmp_path / "c.npz", {**chosen, "action": [0, 0]})
    assert [opened(path).num_arms for path in (one, two, zero)] == [5, 6, 2]
    assert opened(one, zero, two).num_arms == 6
    assert opened(one, num_arms=9).num_arms == 9
    # Identifiers are above ten thousand, and above the number of rows.
    assert opened(write(one, {**chosen, "action": [0, 9_999]})).num_arms == 10_000
    with pytest.raises(RequestError, match="'action' holds 10,000, the log has 2 rows: arms are n"):
        opened(write(one, {**chosen, "action": [0, 10_000]}))
    large = {name: numpy.zeros(10_002, int) for name in ("context", "action", "reward")}
    large["action"][0] = 10_001
    assert opened(write(tmp_path / "d.npz", large)).num_arms == 10_002


def test_propensities_are_those_told_or_uniform_among_the_arms_that_were_there(
    tmp_path: Path,
) -> None:
    table = {name: values for name, values in columns(3).items() if name != "propensity"}

    def propensities(**more: Any) -> Any:
        log = opened(write(tmp_path / "log.parquet", {**table, **more}), num_arms=3)
        return log.whole().propensity_or_uniform(log.num_arms).tolist()

    assert propensities() == [1 / 3] * 3
    assert propensities(action_mask=[[1, 0, 0], [1, 1, 1], [0, 1, 1]]) == [1, 1 / 3, 0.5]
    told: dict[str, Any] = {"action_log_prob": numpy.log([0.5, 0.25, 1])}
    assert propensities(**told) == pytest.approx([0.5, 0.25, 1])
    told["propensities"] = [[0.5, 0.5, 0], [0.2, 0.7, 0.1], [0, 0, 1]]
    assert propensities(**told) == [0.5, 0.7, 1]
    assert propensities(**told, propensity=[0.25, 0.5, 1.0]) == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("table", "options", "told"),
    [
        # Columns named arms_ARM_FEATURE, or a number of arms from anywhere.
        ({f"arms_{arm}_{one}": [10 * arm + one] for arm in range(2) for one in range(3)}, {},
         [[0, 1, 2], [10, 11, 12]]),
        ({"arms": [[0, 1, 2, 10, 11, 12]], "action_mask": [[1, 1]]}, {},
         [[0, 1, 2], [10, 11, 12]]),
        ({"arms": [[0, 1, 2, 10, 11, 12]]}, {"num_arms": 2}, [[0, 1, 2], [10, 11, 12]]),
        ({"arms": [[0, 1, 2, 10, 11, 12]], "rewards": [[4, 5, 6]]}, {},
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
