"""Small tasks of several agents with known optima."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from gymnasium import spaces
from pettingzoo import ParallelEnv

__all__ = ["Lottery", "MatrixGame", "Meeting", "TwoStep", "shortest_meeting"]


class _TwoAgents(ParallelEnv[str, Any, Any]):  # type: ignore[misc] # untyped in PettingZoo
    """Two agents that act at once, with equal spaces."""

    observations: spaces.Space[Any]
    actions: spaces.Space[Any]

    def __init__(self) -> None:
        self.possible_agents = ["agent_0", "agent_1"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The same for both."""
        return self.observations

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The same for both."""
        return self.actions


class Meeting(_TwoAgents):
    """Two agents on a line of cells move left, stay or move right until they are in one cell.

    Each sees its own cell and the other's. Every step after which they are apart costs both 1: in
    the best case they meet after half of their distance, rounded up. Passing is not meeting.
    """

    metadata = {"name": "meeting", "render_modes": []}

    def __init__(self, cells: int = 6, max_steps: int = 20) -> None:
        super().__init__()
        self.observations = spaces.Box(0, 1, (2 * cells,), numpy.float32)
        self.actions = spaces.Discrete(3)
        self._cells, self._max_steps = cells, max_steps
        self._random = numpy.random.default_rng()
        self._at = [0, 0]
        self._taken = 0

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Two different cells, drawn at random."""
        if seed is not None:
            self._random = numpy.random.default_rng(seed)
        self._at = self._random.choice(self._cells, 2, replace=False).tolist()
        self._taken = 0
        self.agents = list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        """Move both."""
        for place, agent in enumerate(self.possible_agents):
            moved = self._at[place] + int(actions[agent]) - 1
            self._at[place] = min(max(moved, 0), self._cells - 1)
        self._taken += 1
        met = self._at[0] == self._at[1]
        late = not met and self._taken >= self._max_steps
        both, self.agents = self.agents, [] if met or late else self.agents
        return (
            self._seen(),
            dict.fromkeys(both, 0.0 if met else -1.0),
            dict.fromkeys(both, met),
            dict.fromkeys(both, late),
            {agent: {} for agent in both},
        )

    def _seen(self) -> dict[str, Any]:
        rows = numpy.zeros((2, 2, self._cells), numpy.float32)
        for place in (0, 1):
            rows[place, 0, self._at[place]] = 1
            rows[place, 1, self._at[1 - place]] = 1
        return dict(zip(self.possible_agents, rows.reshape(2, -1), strict=True))


def shortest_meeting(cells: int = 6) -> float:
    """The mean return of the best pair of agents in `Meeting`, over all starts."""
    ways = [(one, other) for one in range(cells) for other in range(cells) if one != other]
    return -sum((abs(one - other) + 1) // 2 - 1 for one, other in ways) / len(ways)


class MatrixGame(_TwoAgents):
    """Both choose at once, and each gets what its payoffs say; an episode has one step.

    `payoffs[i][j]` is what an agent that chooses i gets from one that chooses j: the game is
    symmetric. By default it is rock, paper, scissors, whose equilibrium is to choose uniformly.
    """

    metadata = {"name": "matrix_game", "render_modes": []}

    def __init__(
        self, payoffs: Sequence[Sequence[float]] = ((0, -1, 1), (1, 0, -1), (-1, 1, 0))
    ) -> None:
        super().__init__()
        self._payoffs = numpy.array(payoffs, numpy.float64)
        self.observations = spaces.Box(0, 1, (1,), numpy.float32)
        self.actions = spaces.Discrete(len(payoffs))

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """There is nothing to see."""
        self.agents = list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        """Pay both."""
        one, other = (int(actions[agent]) for agent in self.possible_agents)
        both, self.agents = self.agents, []
        paid = (float(self._payoffs[one, other]), float(self._payoffs[other, one]))
        ends = dict.fromkeys(both, True), dict.fromkeys(both, False)
        return self._seen(), dict(zip(both, paid, strict=True)), *ends, {one: {} for one in both}

    def _seen(self) -> dict[str, Any]:
        return {agent: numpy.ones(1, numpy.float32) for agent in self.possible_agents}


class Lottery(_TwoAgents):
    """Each agent sees a bit of its own, and both are paid 1 in each step in which both name theirs.

    Beside that, both win or lose a prize in each step: which it is in this episode, neither sees,
    but `state()` has it. What an agent sees does not tell what it will be paid, the state does.
    """

    metadata = {"name": "lottery", "render_modes": []}

    def __init__(self, prize: float = 10.0, max_steps: int = 4) -> None:
        super().__init__()
        self.observations = spaces.Box(0, 1, (2,), numpy.float32)
        self.actions = spaces.Discrete(2)
        self.state_space = spaces.Box(-1, 1, (6,), numpy.float32)
        self._prize, self._max_steps = prize, max_steps
        self._random = numpy.random.default_rng()
        self._bits, self._luck, self._taken = [0, 0], 1, 0

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """New bits, and maybe another prize."""
        if seed is not None:
            self._random = numpy.random.default_rng(seed)
        self._luck = 2 * int(self._random.integers(2)) - 1
        self._bits = self._random.integers(2, size=2).tolist()
        self._taken = 0
        self.agents = list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        """Pay both, and draw new bits."""
        right = [
            int(actions[agent]) == bit
            for agent, bit in zip(self.possible_agents, self._bits, strict=True)
        ]
        paid = self._prize * self._luck + all(right)
        self._bits = self._random.integers(2, size=2).tolist()
        self._taken += 1
        over = self._taken >= self._max_steps
        both, self.agents = self.agents, [] if over else self.agents
        return (
            self._seen(),
            dict.fromkeys(both, paid),
            dict.fromkeys(both, over),
            dict.fromkeys(both, False),
            {agent: {} for agent in both},
        )

    def state(self) -> Any:
        """Both bits, the prize, and how much of the episode is left."""
        left = 1 - self._taken / self._max_steps
        bits = numpy.concatenate(list(self._seen().values()))
        return numpy.array([*bits, self._luck, left], numpy.float32)

    def _seen(self) -> dict[str, Any]:
        rows = numpy.eye(2, dtype=numpy.float32)[self._bits]
        return dict(zip(self.possible_agents, rows, strict=True))


class TwoStep(_TwoAgents):
    """The game of two steps of the paper on QMIX (Rashid et al. 2018).

    In the first step the choice of `agent_0` leads to one of two matrix games, in which both are
    paid. The first pays 7, whatever they do; the second pays 8 if both choose 1, 0 if both choose
    0, and else 1. Agents see which step and game it is, and who they are.
    """

    metadata = {"name": "two_step", "render_modes": []}

    def __init__(self) -> None:
        super().__init__()
        self.observations = spaces.Box(0, 1, (5,), numpy.float32)
        self.actions = spaces.Discrete(2)
        self.state_space = spaces.Box(0, 1, (3,), numpy.float32)
        self._at = 0

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """To the first step."""
        self._at = 0
        self.agents = list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        """Choose a game, or play it."""
        one, other = (int(actions[agent]) for agent in self.possible_agents)
        both, over, paid = list(self.agents), self._at > 0, 0.0
        if over:
            paid = 7.0 if self._at == 1 else float(_SECOND_GAME[one][other])
            self.agents = []
        else:
            self._at = 1 + one
        return (
            self._seen(),
            dict.fromkeys(both, paid),
            dict.fromkeys(both, over),
            dict.fromkeys(both, False),
            {agent: {} for agent in both},
        )

    def state(self) -> Any:
        """Which step and game it is."""
        return numpy.eye(3, dtype=numpy.float32)[self._at]

    def _seen(self) -> dict[str, Any]:
        who = numpy.eye(2, dtype=numpy.float32)
        return {
            agent: numpy.concatenate([self.state(), who[place]])
            for place, agent in enumerate(self.possible_agents)
        }


_SECOND_GAME = ((0, 1), (1, 8))
