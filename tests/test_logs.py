"""Logs: roles of columns, batches that are read, and values that cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.errors import ConfigError, RequestError
from rlplug.logs.recording import Recording
from tests.log_files import columns, opened, write

# -- logs ------------------------------------------------------------------------------------------


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
    # Other names are in the order of the file, or as they are listed.
    for context, values in (
        ("y*", [3.0, 2.0, 1.0]),
        ("y,x*", [1.0, 9.0, 10.0]),
        (("y", "y10a"), [1.0, 2.0]),
        ("y*,!y10a", [3.0, 1.0]),
        ("*,!x*", [3.0, 2.0, 1.0, 5.0]),
    ):
        log = opened(path, context=context, reward="r_a")
        assert log.whole()["context"].tolist() == [values], context
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
    table: dict[str, Any] = {f"context_{index}": [b"a"] for index in range(11)}
    with pytest.raises(ConfigError) as raised:
        opened(write(tmp_path / "log.parquet", {**table, "action": [0], "reward": [1.0]}))
    assert str(raised.value).count("not numbers") == 3
    assert str(raised.value).endswith(f"{', '.join(table)}, action, …")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"reward": ["a", "b"]}, "'reward' of log.parquet holds string, not numbers"),
        ({"context": [[b"a"], [b"b"]]}, "'context' of log.parquet holds list<element: binary>"),
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
    two = write(tmp_path / "b.csv", {**chosen, "action": [5, 0]})
    zero = write(tmp_path / "c.npz", {**chosen, "action": [0, 0]})
    assert [opened(path).num_arms for path in (one, two, zero)] == [5, 6, 2]
    assert opened(one, zero, two).num_arms == 6
    assert opened(one, num_arms=9).num_arms == 9
    # Identifiers are above ten thousand, and above the number of rows.
    assert opened(write(one, {**chosen, "action": [0, 9_999]})).num_arms == 10_000
    with pytest.raises(
        RequestError, match="'action' says that there are 10,001 arms, the log has 2 rows"
    ):
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


# -- logs checks -----------------------------------------------------------------------------------


THREE = {"context": [0.5, 1.5, 2.5], "action": [0, 2, 1], "reward": [1.0, 2.0, 3.0]}
"""Three rows, whose arms are 0 to 2."""


def refused(tmp_path: Path, table: Mapping[str, Any], **options: Any) -> str:
    """What is said of the columns beside those of `PLAIN`, without the hint."""
    path = write(tmp_path / "log.parquet", {**THREE, **table})
    with pytest.raises(RequestError) as raised:
        opened(path, num_arms=3, **options).whole()
    return raised.value.message


def accepted(tmp_path: Path, table: Mapping[str, Any]) -> Any:
    path = write(tmp_path / "log.parquet", {**THREE, **table})
    return opened(path, num_arms=3).whole()


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("context", [0.0, 1.0, numpy.nan], "row 2: column 'context' is missing or NaN"),
        ("reward", [0.0, numpy.inf, numpy.nan], "row 1: column 'reward' is infinite"),
        ("weight", [0.0, 1.0, -0.5], "row 2: column 'weight' is -0.5, below 0"),
        ("context", [[0.0, 1.0], [2.0, 3.0], [4.0, numpy.nan]], "row 2: column 'context' (value 1)"
         " is missing or NaN"),
        ("rewards", [[0.0, 1.0, 2.0], [3.0, numpy.inf, 5.0], [6.0, 7.0, 8.0]],
         "row 1: column 'rewards' (value 1) is infinite"),
        ("arms", [[[0.0], [1.0], [2.0]]] * 2 + [[[3.0], [4.0], [numpy.nan]]],
         "row 2: column 'arms' (value 2, 0) is missing or NaN"),
        ("action", [0, 3, 1], "row 1: column 'action' is 3, the arms are 0 to 2"),
        ("action", [0, 1, -1], "row 2: column 'action' is -1, the arms are 0 to 2"),
        ("action", [0.0, 2.0, 1.5], "row 2: column 'action' is 1.5, no whole number"),
        ("propensity", [1.0, 0.0, 0.5],
         "row 1: column 'propensity' is 0, no probability above 0 and at most 1"),
        ("propensity", [1.0, 1 + 1.5e-6, 0.5],
         "row 1: column 'propensity' is 1, no probability above 0 and at most 1"),
        ("action_log_prob", [-0.5, 1.5e-5, 0.0],
         "row 1: column 'action_log_prob' is 1.5e-05, no log-probability"),
    ],
)  # fmt: skip
def test_the_first_value_that_cannot_be_is_told(
    tmp_path: Path, name: str, values: list[Any], told: str
) -> None:
    assert refused(tmp_path, {name: values}) == f"log.parquet, {told}."


def test_probabilities_of_all_arms_are_probabilities_that_sum_to_one(tmp_path: Path) -> None:
    """Arms 0, 2 and 1 were chosen, only these must have been likely; sums may miss 1 a little."""
    given = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.9995, 0.0]]
    for row, values, told in (
        (1, [1.25, -0.25, 0.0], "0' is 1.25, no probability from 0 to 1"),
        (1, [0.25, -0.25, 1.0], "1' is -0.25, no probability from 0 to 1"),
        (2, [numpy.nan, 1.0, 0.0], "0' is missing or NaN"),
        (1, [0.0, 0.0015, 1.0], "0' and those of the other arms sum to 1.0015"),
        (2, [0.0, 0.9985, 0.0], "0' and those of the other arms sum to 0.9985"),
        (1, [0.5, 0.5, 0.0], "2' is 0 for the arm that was chosen"),
    ):
        rows = [*given[:row], values, *given[row + 1 :]]
        table = {f"propensities_{arm}": [each[arm] for each in rows] for arm in range(3)}
        assert refused(tmp_path, table) == (f"log.parquet, row {row}: column 'propensities_{told}.")
    told = refused(tmp_path, {"propensities": [given[0], [0.5, 0.5, 0.0], given[2]]})
    assert told == (
        "log.parquet, row 1: column 'propensities' (value 2) is 0 for the arm that was chosen."
    )
    rows = accepted(tmp_path, {"propensities": given})
    assert rows.propensity_or_uniform(3).tolist() == [1.0, 1.0, 0.9995]


def test_values_of_all_arms_are_as_many_as_arms(tmp_path: Path) -> None:
    many = {f"propensities_{arm}": [0.2] * 3 for arm in range(5)}
    names = "propensities_0, propensities_1, propensities_2, propensities_3, …"
    assert refused(tmp_path, many) == (
        f"log.parquet: propensities ({names}) are of 5 arms, there are 3."
    )
    for role, values in (
        *(("arms", [[0.0], [1.0]]), ("action_mask", [1, 1])),
        *(("propensities", [0.5, 0.5]), ("rewards", [0.0, 1.0])),
    ):
        told = refused(tmp_path, {role: [values] * 3})
        assert told == f"log.parquet: {role} ({role}) are of 2 arms, there are 3."
        table = {**THREE, role: [values] * 3, "action": [[0.5], [1.5], [2.5]]}
        with pytest.raises(RequestError, match="are of 2 arms, there are 0"):
            opened(write(tmp_path / "log.parquet", table))
    # They need not sum to 1, nor be above 0.
    rewards = [[-1.0, 2.0, 30.0]] * 3
    assert accepted(tmp_path, {"rewards": rewards})["rewards"].tolist() == rewards
    for mask, told in (({}, "an unknown number of"), ({"action_mask": [[1, 1]] * 3}, "2")):
        path = write(tmp_path / "log.parquet", {**THREE, "arms": [[0.0, 1.0, 2.0]] * 3, **mask})
        with pytest.raises(
            RequestError, match=f"3 features of arms cannot be .* among {told} arms"
        ):
            opened(path)


def test_what_absent_arms_hold_is_no_error(tmp_path: Path) -> None:
    nan = numpy.nan
    table: dict[str, Any] = {
        "action_mask": [[1, 0, 1]] * 3,
        "action": [0, 2, 2],
        "arms": [[[0.0, 1.0], [nan, 2.0], [3.0, 4.0]]] * 3,
        "rewards": [[0.0, numpy.inf, 1.0]] * 3,
    }
    assert numpy.isnan(accepted(tmp_path, table)["arms"][2, 1, 0])
    arms = [*table["arms"][:2], [[0.0, 1.0], [nan, 2.0], [3.0, nan]]]
    assert refused(tmp_path, {**table, "arms": arms}) == (
        "log.parquet, row 2: column 'arms' (value 2, 1) is missing or NaN."
    )
    rewards = [[0.0, nan, 1.0], [nan, 0.0, 1.0], [0.0, 0.0, 0.0]]
    assert refused(tmp_path, {**table, "rewards": rewards}) == (
        "log.parquet, row 1: column 'rewards' (value 0) is missing or NaN."
    )
    # The context is everybody's.
    assert refused(tmp_path, {**table, "context": [0.0, nan, 1.0]}) == (
        "log.parquet, row 1: column 'context' is missing or NaN."
    )
    assert refused(tmp_path, {**table, "action": [0, 2, 1]}) == (
        "log.parquet, row 2: column 'action' is 1, an arm that is absent there."
    )


def test_the_arms_of_a_recording_may_begin_at_another_number(tmp_path: Path) -> None:
    """Arms 5 to 7: a mask's first value is of arm 5."""
    observed = spaces.Dict(
        {"context": spaces.Box(-1.0, 1.0, (1,)), "action_mask": spaces.MultiBinary(3)}
    )
    seen = {
        "context": numpy.zeros((2, 1), numpy.float32),
        "action_mask": numpy.array([[1, 0, 0], [0, 1, 1]], numpy.int8),
    }

    def recorded(*actions: int) -> Path:
        folder = tmp_path / "-".join(map(str, actions))
        recording = Recording(folder, observed, spaces.Discrete(3, start=5))
        recording.start()
        recording.add(seen, {"action": numpy.array(actions), "reward": numpy.zeros(2)})
        recording.flush()
        return folder

    rows = opened(recorded(5, 7)).whole()
    assert rows.action_index.tolist() == [0, 2]
    with pytest.raises(RequestError, match="row 1: column 'action' is 5, an arm that is absent"):
        opened(recorded(5, 5)).whole()
    for action in (4, 8):
        told = f"row 1: column 'action' is {action}, the arms are 5 to 7"
        with pytest.raises(RequestError, match=told):
            opened(recorded(5, action)).whole()
