"""Minari data sets as logs, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.errors import RequestError, UnsupportedSpaceError
from rlplug.logs import Log
from tests.log_files import opened

minari = pytest.importorskip("minari")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")

BOX = spaces.Box(-10.0, 10.0, (1,), numpy.float64)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def data_set(name: str, action_space: Any, actions: list[Any], seen: Any = BOX) -> Log:
    """Episodes of three steps, observed 0 to 3, and of two steps, 5 to 7; the first one ends."""
    from minari.data_collector import EpisodeBuffer

    buffers = []
    for number, (first, n) in enumerate(((0, 3), (5, 2))):
        observed: Any = numpy.arange(first, first + n + 1, dtype=float)[:, None]
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations={"x": observed} if isinstance(seen, spaces.Dict) else observed,
                actions=numpy.array(actions[:n] if number == 0 else actions[3:]),
                rewards=10.0 * numpy.arange(first, first + n),
                terminations=[False] * (n - 1) + [number == 0],
                truncations=[False] * (n - 1) + [number == 1],
            )
        )
    minari.create_dataset_from_buffers(
        name,
        buffers,
        observation_space=seen,
        action_space=action_space,
        algorithm_name="numbers",
        author="nobody",
        author_email="nobody@example.org",
        code_permalink="https://example.org",
        description="Two episodes.",
        data_format="hdf5",
    )
    return opened_set(name)


def opened_set(name: str) -> Log:
    return opened(name, format="minari")  # type: ignore[arg-type] # a name in place of a path


def test_rows_are_read_from_any_row() -> None:
    log = data_set("numbers/discrete-v0", spaces.Discrete(4), [0, 1, 2, 3, 0])
    assert (log.rows, log.num_arms, log.is_bandit) == (5, 4, False)
    assert (log.observation_space, log.action_space) == (BOX, spaces.Discrete(4))
    expected: dict[str, list[Any]] = {
        "context": [[0.0], [1.0], [2.0], [5.0], [6.0]],
        "next_context": [[1.0], [2.0], [3.0], [6.0], [7.0]],
        "action": [0, 1, 2, 3, 0],
        "reward": [0.0, 10.0, 20.0, 50.0, 60.0],
        "episode": [0, 0, 0, 1, 1],
        "terminated": [False, False, True, False, False],
        "truncated": [False, False, False, False, True],
    }
    for first in range(5):
        for size in (1, 2, 5):
            batches = list(log.read(first, size))
            assert [batch.first for batch in batches] == list(range(first, 5, size))
            for name, column in expected.items():
                read = numpy.concatenate([batch[name] for batch in batches])
                assert read.tolist() == column[first:], name


def test_data_sets_that_cannot_be_read_are_refused() -> None:
    name = "numbers/dict-v0"
    with pytest.raises(UnsupportedSpaceError, match=f"Minari data set '{name}' has Dict"):
        data_set(name, spaces.Discrete(4), [0] * 5, spaces.Dict({"x": BOX}))
    with pytest.raises(RequestError) as missing:
        opened_set("numbers/dict-v1")
    assert f"no local Minari data set 'numbers/dict-v1'. Did you mean {name!r}?" in str(missing)
    assert missing.value.hints == ("try: minari download numbers/dict-v1",)
