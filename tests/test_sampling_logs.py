"""Reading a log as if it were sampled: rewards that are reported, and where episodes end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlplug.config.sections import DataSection
from rlplug.errors import RequestError
from rlplug.logs import Log
from rlplug.sampling.log import LogReader


def columns_of(folder: Path, pool: int = 100, n_step: int = 1, **table: list[Any]) -> Any:
    """What one collection gives of all usable rows of a log, `pool` of which are read at a time."""
    path = folder / "log.csv"
    lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    path.write_text("\n".join([",".join(table), *lines]))
    log = Log.open(DataSection(files=(str(path),), shuffle_rows=1))
    reader = LogReader(log, rows=pool, steps=100, seed=0, wants_next=True, n_step=n_step)
    reader.start()
    return reader.collect(0).columns


def log_of(episode: list[int] | None, **more: list[Any]) -> dict[str, list[Any]]:
    steps = len(next(iter(more.values()))) if episode is None else len(episode)
    table: dict[str, list[Any]] = {"context": list(range(steps)), "action": [0] * steps}
    table["reward"] = [1.0] * steps
    return {**table, **({} if episode is None else {"episode": episode}), **more}


def test_the_mean_reward_is_that_of_the_rows_since_the_last_report(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = [f"{row},{row % 2},{reward}" for row, reward in enumerate([1, 2, -3, 4, 5])]
    path.write_text("\n".join(["context,action,reward", *lines]))
    log = Log.open(DataSection(files=(str(path),), shuffle_rows=1))
    sampler = LogReader(log, rows=2, steps=20, seed=0, pool=1)
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
    again = LogReader(log, rows=2, steps=20, seed=0, pool=1)
    assert again.set_state(saved, seed=0) == ""
    again.collect(4)
    assert again.take_metrics() == {"data/reward_mean": 2.0, "data/epoch": pytest.approx(1.0)}


def transitions(columns: Any) -> list[tuple[Any, ...]]:
    names = ("observations", "next_observations", "terminated")
    return list(zip(*(columns[name].ravel().tolist() for name in names), strict=True))


def test_without_ends_in_the_log_episodes_end_where_their_number_changes(tmp_path: Path) -> None:
    # What follows the last row of an episode is unknown, and so is what follows the log.
    cut = [(0, 1, False), (2, 3, False)]
    assert transitions(columns_of(tmp_path, **log_of([6, 6, 7, 7]))) == cut
    # Another episode after the rows that are read together cuts the last one off, too.
    pool = columns_of(tmp_path, 4, **log_of([6, 6, 7, 7, 8]))
    assert transitions(pool) == cut
    pool = columns_of(tmp_path, 4, **log_of([6, 6, 7, 7, 7]))
    assert transitions(pool) == [*cut, (3, 4, False)]
    # An episode that is said to have terminated was not cut off.
    ends = log_of([6, 6, 7, 7], terminated=[0, 1, 0, 1])
    assert transitions(columns_of(tmp_path, **ends)) == [
        (0, 1, False),
        (1, 2, True),
        (2, 3, False),
        (3, 3, True),
    ]
    # What the log says of its ends counts, whatever the numbers are.
    ends = log_of([6, 6, 7, 7], terminated=[0] * 4, truncated=[1, 0, 0, 0])
    assert transitions(columns_of(tmp_path, **ends)) == [(1, 2, False), (2, 3, False)]


def test_without_numbers_of_episodes_ends_tell_them_apart(tmp_path: Path) -> None:
    ends = log_of(None, terminated=[0, 1, 0, 0, 1], truncated=[0, 0, 0, 1, 0])
    columns = columns_of(tmp_path, n_step=2, **ends)
    # The returns of two steps, of one at the end of an episode.
    assert columns["rewards"].tolist() == [2.0, 1.0, 1.0, 1.0]
    assert columns["observations"].ravel().tolist() == [0, 1, 2, 4]


def test_a_log_in_which_nothing_follows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no row of the log has a next observation"):
        columns_of(tmp_path, **log_of([1, 2, 3]))
