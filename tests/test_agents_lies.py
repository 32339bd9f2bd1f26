"""Environments with several agents that do not keep their word: each is named, with its step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest

from rlplug.errors import EnvironmentFailedError
from rlplug.feeds import Rollout
from tests.agent_games import Countdown, Relay
from tests.agent_runs import told as refused
from tests.test_agents import made, opened, sampler_of

Change = Callable[..., tuple[Any, ...]]


def told(env: Callable[..., Any]) -> str:
    """What eight steps of one environment end with."""
    environments = made(env)
    feeds = opened(Rollout(n_steps=8, batch_size=0), environments)
    with pytest.raises(EnvironmentFailedError) as failed:
        sampler_of(environments, feeds, steps=8)[0].collect(0)
    assert failed.value.hints == ("try: fix the environment (--debug shows where)",)
    return failed.value.message


class Lying(Relay):
    """`Relay` whose answers are changed."""

    def __init__(self, at_step: Change, at_reset: Change = lambda game, *answers: answers) -> None:
        super().__init__()
        self.at_reset, self.at_step = at_reset, at_step

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self.at_reset(self, *super().reset(seed, options))

    def step(self, actions: Any) -> Any:
        return self.at_step(self, *super().step(actions))


def without(column: int, agent: str, time: int) -> Change:
    """Leave an agent out of one of the answers of a step."""

    def answer(game: Any, *answers: Any) -> tuple[Any, ...]:
        if game.time == time:
            del answers[column][agent]
        return answers

    return answer


def replaced(column: int, value: Any) -> Change:
    """Give agent `first` another value."""

    def answer(game: Any, *answers: Any) -> tuple[Any, ...]:
        answers[column]["first"] = value
        return answers

    return answer


def strangers(game: Any, *answers: Any) -> tuple[Any, ...]:
    game.agents = ["ghost"]
    return answers


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without(0, "second", 1), "0 steps: ValueError: it gave no observation for agent 'second'"),
        (without(0, "first", 2), "1 steps: ValueError: it gave no observation for agent 'first'"),
        (without(1, "first", 1), "0 steps: ValueError: it gave no rewards for agent 'first'"),
        (without(2, "first", 1), "0 steps: ValueError: it gave no terminated for agent 'first'"),
        (without(3, "second", 3), "2 steps: ValueError: it gave no truncated for agent 'second'"),
        (replaced(0, numpy.zeros(7)), "agent 'first' an observation of shape (7,), its space has"),
        (replaced(1, [1.0, 2.0]), "0 steps: "),
        (replaced(1, "1"), "reward['first'] = '1', expected a number"),
        (replaced(2, "False"), "terminated['first'] = 'False', expected a boolean"),
        (replaced(3, 0.5), "truncated['first'] = 0.5, expected a boolean"),
        (strangers, "0 steps: ValueError: agent 'ghost' is not among its possible_agents"),
        (lambda game, *answers: answers[:4], "0 steps: ValueError: "),
        (lambda game, *answers: None, "0 steps: TypeError: "),
    ],
)
def test_an_environment_whose_step_lies_is_named_with_the_step(change: Change, said: str) -> None:
    message = told(partial(Lying, change))
    assert message.startswith("environment 'partial' failed in step after ")
    assert said in message


def test_an_environment_whose_reset_lies_is_named() -> None:
    for at_reset in (strangers, lambda game, seen, infos: ({}, infos), lambda game, seen, _: seen):
        said = told(partial(Lying, lambda game, *answers: answers, at_reset))
        assert said.startswith("environment 'partial' failed in reset after 0 steps: ")


class Undead(Countdown):
    """Agents that have ended are not removed."""

    def step(self, action: Any) -> None:
        if not self.terminations[self.agent_selection]:
            super().step(action)


class Vanishing(Countdown):
    """All agents are gone after the second action, and none has ended."""

    def step(self, action: Any) -> None:
        super().step(action)
        if self.taken == 2:
            self.agents = []


class Lacking(Countdown):
    """Nothing is known of the end of an agent whose turn it is."""

    def step(self, action: Any) -> None:
        super().step(action)
        self.terminations.pop("right", None)


class Unseen(Countdown):
    """`right` sees nothing."""

    def observe(self, agent: str) -> Any:
        return None if agent == "right" else super().observe(agent)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (partial(Relay, lie="stays"), "agent 'first' has ended and is among its agents"),
        (partial(Relay, lie="leaves"), "agent 'second' has not ended and is not among its agents"),
        (partial(Relay, lie="nobody"), "no agents after a reset"),
        (Undead, "it keeps agent 'right' among its agents after its end"),
        (Vanishing, "its episode is over, but agent 'left' has not ended"),
        (Lacking, "'right'"),
        (Unseen, "it gave no observation for agent 'right'"),
    ],
)
def test_an_environment_that_lies_about_its_agents_is_named(env: Any, said: str) -> None:
    assert said in told(env)


class Numbered(Relay):
    """Its agents are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents: Any = ["zero", 1, 2]


class Nobody(Numbered):
    """It has none."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = []


class Spaceless(Relay):
    """It has no observation spaces."""

    def observation_space(self, agent: str) -> Any:
        return None


def test_agents_and_spaces_that_are_none_are_refused_before_the_run() -> None:
    for env in (Nobody, Numbered, Spaceless):
        assert "does not tell its agents and their spaces" in refused(env)
