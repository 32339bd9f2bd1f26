"""Games that worker processes step: the same rows, with the answers of other processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from rlplug.config.sections import SamplingSection
from rlplug.envs.agents.games import Answer, Game
from rlplug.envs.agents.global_state import StateOf
from rlplug.envs.agents.making import agent_spaces_of, make_game
from rlplug.envs.agents.vector import AgentVector
from rlplug.envs.row_writer import row_writer
from rlplug.envs.saving import unpickled
from rlplug.envs.sync import ANSWERS
from rlplug.envs.workers import WorkerVector
from rlplug.spaces import ACTION_MASK, AnySpace

__all__ = ["WorkerAgentVector"]


class WorkerAgentVector(AgentVector):
    """Steps games in worker processes, all of them at once, and waits for all.

    A worker that fails ends the run: what its agents did since their last answers is lost.
    """

    def __init__(
        self,
        game: Game,
        maker: Callable[..., Any],
        name: str,
        arguments: Mapping[str, Any],
        modules: Mapping[str, Sequence[str]],
        agent_spaces: Mapping[str, tuple[AnySpace, AnySpace]],
        num_games: int,
        *,
        section: SamplingSection,
        seed: int,
    ) -> None:
        """`game` is one like those of the workers."""
        super().__init__([game], modules, agent_spaces, num_games=num_games)
        self._make = partial(_WorkerGame.make, maker, name, arguments)
        self._start = partial(
            WorkerVector,
            num_envs=num_games,
            num_workers=section.workers,
            name=name,
            seed=seed,
            timeout=section.step_timeout,
        )
        self._ending = ExitStack()
        self._workers: WorkerVector
        self._everyone = numpy.arange(num_games)
        self._actions: Any = create_empty_array(self.single_action_space, num_games)
        self._write_action = {
            agent: row_writer(action_space) for agent, (_, action_space) in agent_spaces.items()
        }

    def begin(self, state_of: StateOf | None) -> None:
        """Start the workers, which keep the global state if it is asked for."""
        super().begin(state_of)
        self._workers = self._start(partial(self._make, state_of))
        self._ending.callback(self._workers.close)

    def reset_games(self, seeds: Sequence[int | None]) -> None:
        """Begin an episode in every game."""
        self._forget_turns()
        _, infos = self._workers.reset(seed=seeds)
        for index, (answer,) in enumerate(infos[ANSWERS]):
            self._begin(index, answer)

    def step_agents(self, actions: Sequence[Sequence[Any]]) -> None:
        """Let the agents act that are to act, with the action of their row, by module."""
        self._forget_turns()
        for index in range(self.num_envs):
            for agent, action in self._chosen(index, actions).items():
                self._write_action[agent](self._actions[agent], index, action)
        self._workers.timestep = self.timestep
        self._workers.send(self._everyone, self._actions, together=True)
        for index, info in self._workers.receive_all().infos:
            answer, *begun = info[ANSWERS]
            self._stepped(index, answer)
            for one in begun:
                self._begin(index, one)

    def save(self, beside: Any) -> tuple[bytes, str]:
        """The games and what belongs to their step, or why they cannot be saved."""
        state, reason = self._workers.get_state()
        return (b"", reason) if reason else (pickle.dumps((state, beside)), "")

    def restore(self, saved: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        state, beside = unpickled(saved, None)
        self._workers.set_state(state)
        return beside

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers."""
        self._ending.close()
        super().close_extras(**kwargs)


class _WorkerGame(gymnasium.Env[Any, Any]):
    """A game as an environment that never ends; what its agents are answered is in the infos."""

    pickles_whole = True
    """As in this process, copies of games are not tried: random actions may break their rules."""

    def __init__(self, game: Game, action_space: spaces.Dict) -> None:
        self.game = game
        self.observation_space = spaces.Box(0, 1, (1,), numpy.int8)
        self.action_space = action_space
        self.acting: Sequence[str] = ()

    @classmethod
    def make(
        cls,
        maker: Callable[..., Any],
        name: str,
        arguments: Mapping[str, Any],
        state_of: StateOf | None,
    ) -> _WorkerGame:
        """A game of its own."""
        game = make_game(maker, name, arguments)
        game.state_of = state_of
        actions = {agent: pair[1] for agent, pair in agent_spaces_of(game, name).items()}
        return cls(game, spaces.Dict(actions))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        return _NOTHING, {ANSWERS: (self._told(self.game.reset(seed)),)}

    def step(self, action: Mapping[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Let the agents act that are to act; after an episode, the next one begins."""
        chosen = {agent: _plain(action[agent]) for agent in self.acting}
        answers = [self._told(self.game.step(chosen))]
        if not answers[0].agents:
            answers.append(self._told(self.game.reset(None)))
        return _NOTHING, 0.0, False, False, {ANSWERS: answers}

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def _told(self, answer: Answer) -> Answer:
        """What is sent: of infos, the masks alone."""
        self.acting = answer.agents
        answer.infos = {
            agent: {ACTION_MASK: info[ACTION_MASK]}
            for agent, info in answer.infos.items()
            if ACTION_MASK in info
        }
        return answer


def _plain(action: Any) -> Any:
    """An action as games in this process get it: numbers of Python."""
    return action.item() if isinstance(action, numpy.integer) else action


_NOTHING = numpy.zeros(1, numpy.int8)
