"""Environments with several agents that do not keep their word, each with what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.config.sections import EnvSection
from rlplug.envs.agents import agent_environments
from rlplug.errors import EnvironmentFailedError, RequestError
from rlplug.feeds import ModuleExperience, Rollout
from tests.agent_games import Countdown, Relay
from tests.agent_runs import told as refused
from tests.test_agents import made, opened, sampler_of

Answers = tuple[Any, ...]


def collected(env: Callable[..., Any]) -> ModuleExperience:
    """Eight steps of one environment."""
    environments = made(env)
    feeds = opened(Rollout(n_steps=8, batch_size=0), environments)
    found = sampler_of(environments, feeds, steps=8)[0].collect(0)
    assert isinstance(found, ModuleExperience)
    return found


class Lying(Relay):
    """`Relay` whose answers are changed."""

    def __init__(
        self,
        at_reset: Callable[..., Any] = lambda game, *answers: answers,
        at_step: Callable[..., Any] = lambda game, *answers: answers,
    ) -> None:
        super().__init__()
        self.at_reset, self.at_step = at_reset, at_step

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self.at_reset(self, *super().reset(seed, options))

    def step(self, actions: Any) -> Any:
        return self.at_step(self, *super().step(actions))


def told(env: Callable[..., Any]) -> str:
    """What a collection ends with, without the name of the environment and the hint."""
    with pytest.raises(EnvironmentFailedError) as failed:
        collected(env)
    said, hint = str(failed.value).splitlines()
    assert "try: fix the environment" in hint
    return said.partition("failed in ")[2] or said


def without(column: int, agent: str, time: int) -> Callable[..., Answers]:
    """Leave an agent out of one of the answers of a step."""

    def answer(game: Any, *answers: Any) -> Answers:
        if game.time == time:
            del answers[column][agent]
        return answers

    return answer


# -- all at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "agent", "time", "said"),
    [
        (
            0,
            "second",
            1,
            "step after 0 steps: ValueError: it gave no observation for agent 'second'",
        ),
        (0, "first", 2, "step after 1 steps: ValueError: it gave no observation for agent 'first'"),
        (1, "first", 1, "it gave no reward for agent 'first'"),
        (2, "first", 1, "it gave no termination for agent 'first'"),
        (3, "second", 3, "it gave no truncation for agent 'second'"),
    ],
)
def test_an_agent_that_is_left_out_of_an_answer_is_named(
    column: int, agent: str, time: int, said: str, home: Any
) -> None:
    assert said in told(partial(Lying, at_step=without(column, agent, time)))


def test_an_agent_without_observation_after_a_reset_is_named() -> None:
    said = told(partial(Lying, at_reset=lambda game, seen, infos: ({}, infos)))
    assert said == "reset after 0 steps: ValueError: it gave no observation for agent 'first'"


def test_answers_about_agents_that_are_not_there_count_nowhere() -> None:
    def more(game: Any, seen: Any, rewards: Any, ended: Any, *others: Any) -> Answers:
        for agent in ("first", "second", "ghost"):
            seen[agent] = seen["first"]
            rewards.setdefault(agent, 1000.0)
            ended.setdefault(agent, agent not in game.agents)
        return (seen, rewards, ended, *others)

    honest, lying = collected(Lying), collected(partial(Lying, at_step=more))
    for name, column in honest.by_module["default"].columns.items():
        numpy.testing.assert_array_equal(lying.by_module["default"].columns[name], column)


def test_an_agent_that_is_not_possible_is_named() -> None:
    def other(game: Any, *answers: Any) -> Answers:
        game.agents = ["ghost"]
        return answers

    said = "it has an agent 'ghost' that is not among its possible_agents (first, second)"
    assert told(partial(Lying, at_reset=other)) == f"reset after 0 steps: ValueError: {said}"
    assert told(partial(Lying, at_step=other)) == f"step after 0 steps: ValueError: {said}"


def test_an_agent_that_comes_back_after_its_end_is_named() -> None:
    def back(game: Any, *answers: Any) -> Answers:
        if game.time == 3:
            game.agents = ["second", "first"]
        return answers

    assert told(partial(Lying, at_step=back)) == (
        "step after 2 steps: ValueError: agent 'first' is among its agents again after its end: "
        "an agent that has ended must not come back before the next reset"
    )


def test_an_agent_that_is_listed_twice_is_refused() -> None:
    def twice(game: Any, *answers: Any) -> Answers:
        game.agents = ["first", "first"]
        return answers

    said = "reset after 0 steps: ValueError: an agent is twice among its agents (first, first)"
    assert told(partial(Lying, at_reset=twice)) == said


@pytest.mark.parametrize(
    ("at_reset", "at_step", "said"),
    [
        (
            lambda game, seen, infos: seen,
            None,
            "its reset returned one dict, expected observations, infos: 2 dicts by agent",
        ),
        (
            None,
            lambda game, *answers: answers[:4],
            "its step returned 4 values, expected observations, rewards, terminations, "
            "truncations, infos: 5 dicts by agent",
        ),
        (None, lambda game, *answers: None, "its step returned None, expected observations"),
        (
            None,
            lambda game, seen, rewards, *others: (seen, 1.0, *others),
            "its step returned one float as rewards, expected observations",
        ),
        (
            None,
            lambda game, seen, rewards, *others: (
                seen,
                {agent: [1.0, 2.0] for agent in rewards},
                *others,
            ),
            "it gave agent 'first' a reward of shape (2,), expected a number",
        ),
        (
            None,
            lambda game, seen, *others: (
                {agent: numpy.zeros(7, numpy.float32) for agent in seen},
                *others,
            ),
            "for agent 'first', it gave an observation of shape (7,), its space has (1,)",
        ),
    ],
)
def test_answers_of_another_form_are_told_with_the_one_that_was_expected(
    at_reset: Any, at_step: Any, said: str, home: Any
) -> None:
    changed = {"at_reset": at_reset, "at_step": at_step}
    given = {name: answer for name, answer in changed.items() if answer is not None}
    assert said in told(partial(Lying, **given))


# -- in turn -------------------------------------------------------------------------------------


class Ending(Countdown):
    """`Countdown` whose end of agent `right` is given as a value that is no boolean."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__()
        self.name, self.value = name, value

    def step(self, action: Any) -> None:
        super().step(action)
        getattr(self, self.name)["right"] = self.value


@pytest.mark.parametrize("value", ["False", 0.5, None, 1, [], numpy.int64(0)], ids=repr)
@pytest.mark.parametrize(("name", "column"), [("terminations", 2), ("truncations", 3)])
def test_ends_of_agents_that_are_no_booleans_are_refused(
    name: str, column: int, value: Any
) -> None:
    def ending(game: Any, *answers: Any) -> Answers:
        answers[column]["first"] = value
        return answers

    said = f"step after 0 steps: TypeError: it gave {name}['first'] = {value!r}, expected a boolean"
    assert told(lambda: Lying(at_step=ending)) == said
    in_turn = told(lambda: Ending(name, value))
    assert in_turn.endswith(f"it gave {name}['right'] = {value!r}, expected a boolean")


@pytest.mark.parametrize("true", [numpy.bool_(True), numpy.array([True])])
def test_ends_of_agents_may_be_arrays_of_one_boolean(true: Any) -> None:
    def ending(game: Any, *answers: Any) -> Answers:
        answers[3].update({agent: true for agent, is_over in answers[3].items() if is_over})
        return answers

    assert collected(lambda: Lying(at_step=ending)) is not None


class Elsewhere(Countdown):
    """The turn is that of an agent that is not there."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.agent_selection = "ghost"


class Stuck(Countdown):
    """After its end, it is the turn of the agent that has just gone."""

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        gone = self.terminations[agent]
        super().step(action)
        if gone and self.agents:
            self.agent_selection = agent


class Undead(Countdown):
    """Agents that have ended are not removed."""

    def step(self, action: Any) -> None:
        if not self.terminations[self.agent_selection]:
            super().step(action)


class Back(Countdown):
    """`left` is terminated by its first action, leaves, and has the third turn all the same."""

    def step(self, action: Any) -> None:
        self._cumulative_rewards.setdefault("left", 0.0)
        super().step(action)
        if self.taken == 1 and "left" in self.agents:
            self.terminations["left"] = not self.terminations["left"]
            self.agent_selection = "left"
        if len(self.agents) == 1:
            self.agent_selection = "right"
        if self.taken == 2:
            self.agents = ["right", "left"]
            self.terminations["left"] = self.truncations["left"] = False
            self._cumulative_rewards["left"], self.infos["left"] = 0.0, {}
            self.agent_selection = "left"


class Vanishing(Countdown):
    """All agents are gone after the second action, and none has ended."""

    def step(self, action: Any) -> None:
        super().step(action)
        if self.taken == 2:
            self.agents = []


class Lacking(Countdown):
    """Nothing is known of an agent whose turn it is."""

    what = "terminations"

    def step(self, action: Any) -> None:
        super().step(action)
        getattr(self, self.what).pop("right", None)


class Unpaid(Lacking):
    what = "_cumulative_rewards"


class Unseen(Countdown):
    """`right` sees nothing."""

    def observe(self, agent: str) -> Any:
        return None if agent == "right" else super().observe(agent)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (
            Elsewhere,
            "reset after 0 steps: ValueError: its agent_selection is 'ghost', which is not among "
            "its agents (left, right)",
        ),
        (Stuck, "its agent_selection is 'right', which is not among its agents (left)"),
        (Undead, "it keeps agent 'right' among its agents after its end"),
        (Back, "agent 'left' is among its agents again after its end"),
        (Vanishing, "its episode is over, but agent 'left' has not ended"),
        (Lacking, "its terminations lack agent 'right', whose turn it is"),
        (Unpaid, "its _cumulative_rewards lack agent 'right', whose turn it is"),
        (Unseen, "it gave None as the observation of agent 'right'"),
    ],
)
def test_an_environment_in_turn_that_lies_is_named(env: Any, said: str) -> None:
    assert said in told(env)


# -- before the first step -------------------------------------------------------------------------


class Named(Relay):
    """Its possible agents are text."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents: Any = "first"


class Spaceless(Relay):
    """It has no observation spaces."""

    def observation_space(self, agent: str) -> Any:
        return None


class Failing(Relay):
    """Its spaces cannot be asked for."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        raise AttributeError("no action_spaces")


class Numbered(Relay):
    """Its agents are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents: Any = ["zero", 1, 2]


def test_agents_and_spaces_that_are_none_are_refused_before_the_run() -> None:
    assert "does not say which agents there may be" in refused(Named)
    said = refused(Numbered)
    assert "its possible_agents is ['zero', 1, 2]" in said
    assert "each by a string of its own such as 'agent_0'" in said
    said = refused(Spaceless)
    assert "has no observation space for agent 'first', but NoneType" in said
    assert "return a gymnasium.spaces.Space from observation_space(agent)" in said
    assert "AttributeError: no action_spaces" in refused(Failing)


def test_an_environment_that_is_another_one_each_time_is_refused() -> None:
    made: list[int] = []

    def changing() -> Relay:
        made.append(1)
        game = Relay()
        game.possible_agents = game.possible_agents[: 1 + len(made) % 2]
        return game

    with pytest.raises(RequestError, match=r"has other agents or spaces the 2\. time"):
        agent_environments(changing, 2, EnvSection(), {})
