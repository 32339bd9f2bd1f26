"""Reading a log as if it were sampled: rewards that are reported, and where episodes end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.config.data_section import DataSection
from rlplug.errors import RequestError
from rlplug.logs import Log, LogRows
from rlplug.sampling.log_sampler import LogSampler
from rlplug.sampling.log_steps import ends_of, episodes_of, with_next

SPACE = spaces.Box(-9, 9, (1,), numpy.float64)


def rows(reward: list[float], **columns: Any) -> LogRows:
    arrays = {name: numpy.array(column) for name, column in columns.items()}
    return LogRows(
        first=0, columns={"reward": numpy.array(reward), **arrays}, observation_space=SPACE
    )


def test_the_mean_reward_is_that_of_the_rows_since_the_last_report(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = [f"{row},{row % 2},{reward}" for row, reward in enumerate([1, 2, -3, 4, 5])]
    path.write_text("\n".join(["context,action,reward", *lines]))
    log = Log.open(DataSection(files=(str(path),), shuffle_rows=1))
    sampler = LogSampler(log, rows=2, steps=20, seed=0, pool=1)
    sampler.start()
    assert sampler.take_metrics() == {"data/epoch": 0.0}
    sampler.collect(0)
    assert sampler.take_metrics() == {"data/reward_mean": 1.5, "data/epoch": pytest.approx(0.4)}
    sampler.collect(2)
    saved = sampler.get_state()
    sampler.collect(4)
    # The last collection ends with the file: one row.
    assert sampler.take_metrics() == {"data/reward_mean": 2.0, "data/epoch": pytest.approx(1.0)}
    # Half of a report that was saved is part of the next one.
    again = LogSampler(log, rows=2, steps=20, seed=0, pool=1)
    assert again.set_state(saved, seed=0) == ""
    again.collect(4)
    assert again.take_metrics() == {"data/reward_mean": 2.0, "data/epoch": pytest.approx(1.0)}


def test_without_ends_in_the_log_episodes_end_where_their_number_changes() -> None:
    def ends(following: LogRows | None, **columns: Any) -> tuple[list[bool], list[bool]]:
        found = ends_of(rows([0.0] * 4, **columns), following)
        return found["terminated"].tolist(), found["truncated"].tolist()

    no, cut = [False] * 4, [False, True, False, False]
    assert ends(None) == (no, no)
    after = rows([0.0], episode=[7])
    assert ends(after, episode=[6, 6, 7, 7]) == (no, cut)
    # The end of the log, or another episode after it, cuts the last one off.
    assert ends(None, episode=[6, 6, 7, 7]) == (no, [False, True, False, True])
    other = rows([0.0], episode=[8])
    assert ends(other, episode=[6, 6, 7, 7]) == (no, [False, True, False, True])
    # An episode that is said to have terminated was not cut off.
    terminated = [False, True, False, False]
    assert ends(after, episode=[6, 6, 7, 7], terminated=terminated) == (terminated, no)
    # What the log says of its ends counts, whatever the numbers are.
    given = [True, False, False, False]
    assert ends(None, episode=[6, 6, 7, 7], truncated=given) == (no, given)


@pytest.mark.parametrize("followed", [False, True])
def test_next_observations_are_those_of_the_row_after_where_it_is_known(followed: bool) -> None:
    columns = {
        "observations": numpy.array([[1.0], [2.0], [3.0], [4.0]]),
        "terminated": numpy.array([False, True, False, False]),
        "truncated": numpy.array([True, False, False, False]),
    }
    following = rows([0.0], context=[[5.0]]) if followed else None
    found = with_next(columns, following)
    # What follows a truncated row is unknown, and that of the last row without one after it.
    assert found["observations"].ravel().tolist() == [2.0, 3.0, 4.0][: 2 + followed]
    assert found["next_observations"].ravel().tolist() == [3.0, 4.0, 5.0][: 2 + followed]
    assert found["terminated"].tolist() == [True, False, False][: 2 + followed]


def test_without_numbers_of_episodes_ends_tell_them_apart() -> None:
    ends = {
        "terminated": numpy.array([False, True, False, False, True]),
        "truncated": numpy.array([False, False, False, True, False]),
    }
    assert episodes_of(rows([0.0] * 5), ends).tolist() == [0, 0, 1, 1, 2]
    assert episodes_of(rows([0.0] * 5, episode=[4, 4, 4, 5, 5]), ends).tolist() == [4, 4, 4, 5, 5]


def test_contexts_of_arms_have_no_next_observation() -> None:
    columns = {"observations": {"arms": numpy.zeros((2, 3))}}
    with pytest.raises(RequestError, match="episodes of a bandit's observations"):
        with_next(columns, None)
