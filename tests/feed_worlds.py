"""Experience whose observations say where they are from: environment, episode and step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy
import torch
from gymnasium import spaces

from rlplug import Batch
from rlplug.batch.nested import to_tensors, tree_map
from rlplug.feeds import Experience, FeedSetting, FinalObservations

ROW = tuple[int, int, int]
"""Environment, episode, and step of the episode."""

SPACE = spaces.Dict(
    at=spaces.Box(0, 1e6, (3,), numpy.float64),
    parts=spaces.Tuple((spaces.Discrete(300), spaces.MultiBinary(2))),
)


def length(env: int, episode: int) -> int:
    """Steps of an episode; every second one is truncated."""
    return 2 + (env + episode) % 3


def reward(row: ROW) -> float:
    env, episode, step = row
    return float(step + 10 * episode + 100 * env)


def observation(rows: list[ROW]) -> dict[str, Any]:
    at = numpy.array(rows, numpy.float64).reshape(-1, 3)
    code = at.astype(int) @ [100, 10, 1] % 300
    binary = numpy.stack((code % 2, code // 2 % 2), 1).astype(numpy.int8)
    return {"at": at, "parts": (code, binary)}


def mask(rows: list[ROW]) -> Any:
    """Which of three actions are allowed: not always the same."""
    return numpy.array([[True, sum(row) % 2 == 0, row[2] == 1] for row in rows]).reshape(-1, 3)


@attrs.define
class World:
    """Environments that reset in the same step, in the next one, or collect unevenly many rows."""

    num_envs: int = 1
    mode: str = "same_step"
    tensors: bool = False
    masked: bool = True
    now: list[ROW] = attrs.Factory(list)
    over: list[bool] = attrs.Factory(list)
    kept: list[list[ROW]] = attrs.Factory(list)
    """What was done in each environment, in order."""
    resets: set[ROW] = attrs.Factory(set)
    """Rows that environments were reset after, in mid-episode."""
    fresh: bool = True

    def __attrs_post_init__(self) -> None:
        self.now = [(env, 0, 0) for env in range(self.num_envs)]
        self.over = [False] * self.num_envs
        self.kept = [[] for _ in range(self.num_envs)]

    def reset(self) -> None:
        """Begin new episodes everywhere."""
        self.resets |= {rows[-1] for rows in self.kept if rows}
        self.now = [(env, episode + 1, 0) for env, episode, _ in self.now]
        self.over, self.fresh = [False] * self.num_envs, True

    def collect(self, steps: int, *, by_environment: bool = False) -> Experience:
        """The next steps."""
        rows: list[ROW] = []
        finals: list[tuple[int, ROW]] = []
        ends, stepped = [], []
        counts = numpy.full(self.num_envs, steps)
        if self.mode == "uneven":
            counts = numpy.array([max(steps - env, 1) for env in range(self.num_envs)])
        for time in range(steps):
            for env in range(self.num_envs):
                row = self.now[env]
                rows.append(row)
                acts = bool(time < counts[env] and not self.over[env])
                stepped.append(acts)
                ended = acts and row[2] + 1 == length(*row[:2])
                ends.append(ended)
                if acts:
                    self.kept[env].append(row)
                after = (env, row[1], row[2] + 1)
                anew = (env, row[1] + 1, 0)
                if self.mode == "next_step":
                    self.now[env] = anew if self.over[env] else after
                    self.over[env] = ended
                elif acts:
                    if ended:
                        finals.append((time * self.num_envs + env, after))
                    self.now[env] = anew if ended else after
        is_cut = numpy.array([row[1] % 2 == 1 for row in rows])
        ended_rows = numpy.array(ends)
        columns = {
            "observations": observation(rows),
            "actions": numpy.array([sum(row) % 3 for row in rows]),
            "rewards": numpy.array([reward(row) for row in rows]),
            "terminated": ended_rows & ~is_cut,
            "truncated": ended_rows & is_cut,
            "twice": {"step": numpy.array([2 * row[2] for row in rows], numpy.float32)},
        }
        following = {"observations": observation(self.now)}
        final = {"observations": observation([row for _, row in finals])}
        if self.masked:
            columns["action_mask"], following["action_mask"] = mask(rows), mask(self.now)
            final["action_mask"] = mask([row for _, row in finals])
        options: dict[str, Any] = {"after_reset": self.fresh}
        self.fresh = False
        if self.mode != "same_step":
            options["stepped"] = numpy.array(stepped)
        if self.mode == "uneven":
            options["counts"] = counts
        if by_environment:
            order = numpy.arange(len(rows)).reshape(steps, self.num_envs).T.reshape(-1)
            columns = tree_map(lambda leaf: leaf[order], columns)
            if "stepped" in options:
                options["stepped"] = options["stepped"][order]
        if self.tensors:
            if self.mode == "same_step":
                options["ends"] = tree_map(
                    lambda leaf, last: _with(leaf, [place for place, _ in finals], last),
                    observation(rows),
                    final["observations"],
                )
                if by_environment:
                    options["ends"] = tree_map(lambda leaf: leaf[order], options["ends"])
            names = [name for name in ("ends", "stepped") if name in options]
            options |= {name: to_tensors(options[name]) for name in names}
            columns, following = to_tensors(columns), to_tensors(following)
        elif finals:
            indices = numpy.array([place for place, _ in finals])
            options["finals"] = FinalObservations(indices, final)
        return Experience(
            columns,
            steps=steps,
            num_envs=self.num_envs,
            by_environment=by_environment,
            following=following,
            **options,
        )

    def setting(self, **changes: Any) -> FeedSetting:
        known: dict[str, Any] = {"observation_space": SPACE, "action_space": spaces.Discrete(3)}
        device = torch.device("cpu") if self.tensors else None
        known |= {"num_envs": self.num_envs, "steps": 10_000, "seed": 0, "device": device}
        return FeedSetting(**{**known, **changes})


def _with(leaf: Any, rows: list[int], last: Any) -> Any:
    leaf = leaf.copy()
    leaf[rows] = last
    return leaf


def rows_in(column: Any) -> list[ROW]:
    """The rows that observations are from, after checking that their parts agree."""
    rows = [tuple(map(int, row)) for row in numpy.asarray(column["at"]).tolist()]
    expected = observation(rows)  # type: ignore[arg-type] # three numbers
    for part, same in zip(column["parts"], expected["parts"], strict=True):
        assert numpy.asarray(part).tolist() == same.tolist()
    return rows  # type: ignore[return-value] # three numbers


def transitions(batch: Batch) -> Iterator[tuple[ROW, ROW, dict[str, Any]]]:
    """Where each transition begins and leads, and its other columns."""
    columns = {name: batch.array(name) for name in batch}
    befores = rows_in(columns.pop("observations"))
    afters = rows_in(columns.pop("next_observations"))
    for index, (before, after) in enumerate(zip(befores, afters, strict=True)):
        yield before, after, {name: take(column, index) for name, column in columns.items()}


def take(column: Any, index: int) -> Any:
    return tree_map(lambda leaf: leaf[index].tolist(), column)
