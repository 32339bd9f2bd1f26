"""Minari data sets as logs: their episodes one after another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.errors import RequestError, UnsupportedSpaceError, did_you_mean
from rlplug.logs.roles import Column
from rlplug.logs.space_json import space_to_json
from rlplug.spaces import describe

__all__ = ["MinariFile"]


class MinariFile:
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
        seen, actions = data.observation_space, data.action_space
        for space in (seen, actions):
            if not isinstance(space, spaces.Box | spaces.Discrete):
                raise UnsupportedSpaceError(
                    f"Minari data set {name!r} has {describe(space)}.",
                    "read are: Box and Discrete",
                )
        told = {"observation_space": space_to_json(seen), "action_space": space_to_json(actions)}
        self.metadata: Mapping[bytes, bytes] = {b"rlplug": json.dumps(told).encode()}
        observed = Column(kind="f", type=str(seen.dtype), is_list=bool(seen.shape))
        self.columns: Mapping[str, Column] = {
            "context": observed,
            "action": Column(
                kind="i" if isinstance(actions, spaces.Discrete) else "f",
                type=str(actions.dtype),
                is_list=bool(actions.shape),
            ),
            "reward": Column(kind="f", type="float64"),
            "episode": Column(kind="i", type="int64"),
            "terminated": Column(kind="b", type="bool"),
            "truncated": Column(kind="b", type="bool"),
            "next_context": observed,
        }

    def count(self) -> int:
        return int(self._data.total_steps)

    def maximum(self, column: str) -> int:
        return int(self._data.action_space.n) - 1

    def blocks(
        self, kinds: Mapping[str, str], first: int
    ) -> Iterator[tuple[int, Mapping[str, NDArray[Any]]]]:
        row = 0
        for number, episode in enumerate(self._data.iterate_episodes()):
            n = len(episode.rewards)
            skipped = min(max(first - row, 0), n)
            if skipped < n:
                seen = numpy.asarray(episode.observations)
                columns = {
                    "context": seen[:-1],
                    "action": numpy.asarray(episode.actions),
                    "reward": numpy.asarray(episode.rewards),
                    "episode": numpy.full(n, number),
                    "terminated": numpy.asarray(episode.terminations),
                    "truncated": numpy.asarray(episode.truncations),
                    "next_context": seen[1:],
                }
                yield row + skipped, {name: columns[name][skipped:] for name in kinds}
            row += n
