"""Minari data sets as logs: their episodes one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.errors import RequestError, UnsupportedSpaceError, did_you_mean
from rlplug.logs.files import Block, Column, LogFile
from rlplug.logs.recording import spaces_as_metadata
from rlplug.spaces import describe

__all__ = ["MinariFile"]


class MinariFile(LogFile):
    """A local Minari data set; it is not downloaded."""

    def __init__(self, name: str) -> None:
        try:
            import minari
        except ImportError as error:
            raise RequestError(
                "reading Minari data sets needs minari, which is not installed.",
                "try: pip install 'rlplug[minari]'",
            ) from error
        there = list(minari.list_local_datasets())
        if name not in there:
            guess = did_you_mean(name, there, sentence=True)
            raise RequestError(
                f"there is no local Minari data set {name!r}. {guess}".rstrip(),
                f"try: minari download {name}",
            )
        self._data = data = minari.load_dataset(name)
        self.path = Path(str(data.spec.data_path))
        for space in (data.observation_space, data.action_space):
            if not isinstance(space, spaces.Box | spaces.Discrete):
                raise UnsupportedSpaceError(
                    f"Minari data set {name!r} has {describe(space)}.",
                    "read are: Box and Discrete",
                )
        self.metadata = spaces_as_metadata(data.observation_space, data.action_space)
        observed = _column(data.observation_space, "f")
        acted = "i" if isinstance(data.action_space, spaces.Discrete) else "f"
        self.columns = {
            "context": observed,
            "action": _column(data.action_space, acted),
            "reward": Column(kind="f", type="float64"),
            "episode": Column(kind="i", type="int64"),
            "terminated": Column(kind="b", type="bool"),
            "truncated": Column(kind="b", type="bool"),
            "next_context": observed,
        }

    def count(self) -> int:
        return int(self._data.total_steps)

    def blocks(self, kinds: Mapping[str, str], first: int) -> Iterator[Block]:
        row = 0
        for number, episode in enumerate(self._data.iterate_episodes()):
            n = len(episode.rewards)
            skipped = min(max(first - row, 0), n)
            if skipped < n:
                seen = numpy.asarray(episode.observations)
                columns = {
                    "context": seen[:-1],
                    "action": episode.actions,
                    "reward": episode.rewards,
                    "episode": numpy.full(n, number),
                    "terminated": episode.terminations,
                    "truncated": episode.truncations,
                    "next_context": seen[1:],
                }
                rows = {name: numpy.asarray(columns[name])[skipped:] for name in kinds}
                yield row + skipped, rows
            row += n


def _column(space: spaces.Space[Any], kind: str) -> Column:
    return Column(kind=kind, type=str(space.dtype), is_list=bool(space.shape))
