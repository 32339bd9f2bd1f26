"""Values that cannot be: which are refused, which are not, and what is said of the first one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.errors import RequestError
from rlplug.logs.recording import Recording
from tests.log_files import opened, write

PLAIN = {"context": [0.5, 1.5, 2.5], "action": [0, 2, 1], "reward": [1.0, 2.0, 3.0]}
"""Three rows, whose arms are 0 to 2."""


def refused(tmp_path: Path, table: Mapping[str, Any], **options: Any) -> str:
    """What is said of the columns beside those of `PLAIN`, without the hint."""
    path = write(tmp_path / "log.parquet", {**PLAIN, **table})
    with pytest.raises(RequestError) as raised:
        opened(path, num_arms=3, **options).whole()
    return raised.value.message


def accepted(tmp_path: Path, table: Mapping[str, Any]) -> Any:
    path = write(tmp_path / "log.parquet", {**PLAIN, **table})
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
        table = {**PLAIN, role: [values] * 3, "action": [[0.5], [1.5], [2.5]]}
        with pytest.raises(RequestError, match="are of 2 arms, there are 0"):
            opened(write(tmp_path / "log.parquet", table))
    # They need not sum to 1, nor be above 0.
    rewards = [[-1.0, 2.0, 30.0]] * 3
    assert accepted(tmp_path, {"rewards": rewards})["rewards"].tolist() == rewards
    for mask, told in (({}, "an unknown number of"), ({"action_mask": [[1, 1]] * 3}, "2")):
        path = write(tmp_path / "log.parquet", {**PLAIN, "arms": [[0.0, 1.0, 2.0]] * 3, **mask})
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
