"""Policies of several agents where agents or spaces are not those they were trained with."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest

import rlplug as library
from rlplug.errors import RequestError
from tests.agent_games import Relay
from tests.agent_runs import MEETING, RELAY, served, trained

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]


class Trio(Relay):
    """`Relay` with an agent more, who never comes."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["first", "second", "third"]


class Untouched(Relay):
    """`Unlike` one of its agents, and neither reset nor stepped."""

    def action_space(self, agent: str) -> Any:
        space: Any = super().action_space(agent)
        if agent == "second":
            space.n = numpy.int64(5)
        return space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        raise AssertionError("it was reset")


def evaluated(run: Any, env: Any, **more: Any) -> str:
    """What an evaluation of a run is refused with."""
    with pytest.raises(RequestError) as refused:
        library.evaluate(run.folder, env=env, episodes=1, **more)
    return str(refused.value)


def test_an_evaluation_with_other_agents_names_those_that_differ(home: Path) -> None:
    run = trained(RELAY)
    said = evaluated(run, Trio)
    assert "environment 'Trio' has the agents first, second, third; those of the run are fi" in said
    assert "try: an environment with the agents of the run" in said


def test_other_spaces_are_refused_before_the_first_step_of_a_video_or_an_episode(
    home: Path,
) -> None:
    run = trained(RELAY)
    assert "has other spaces than run" in evaluated(run, Untouched)
    assert "environment 'Untouched'" in evaluated(run, Untouched, video=True)


def test_one_agent_and_several_are_told_apart(rlplug: Command, home: Path) -> None:
    single = trained("CartPole-v1")
    said = evaluated(single, MEETING)
    assert f"run {single.run_id} has one agent, and '{MEETING}' has several." in said
    assert "try: an environment" in said
    done = rlplug("eval", single.run_id, "--env", "pettingzoo:mpe/simple_spread_v3")
    assert done.code == 2
    assert "has one agent, and 'pettingzoo:mpe/simple_spread_v3' has several." in done.err


def test_a_policy_names_the_agent_whose_input_is_wrong(home: Path) -> None:
    policy = library.load(trained(RELAY).folder)
    seen = {"first": [0.0]}
    for given, mask, said in (
        ({}, None, "there is no agent in the observation"),
        ([0.0], None, "observation must be a mapping by agent"),
        ({**seen, "third": [0.0]}, None, "there is no agent 'third'"),
        ({**seen, "second": [0.0, 1.0]}, None, r"agent 'second': observation has shape"),
        (seen, [1, 1], "action_mask must be a mapping by agent, found list"),
        (seen, {"first": [1, 1, 1]}, r"agent 'first': the action mask has shape"),
    ):
        with pytest.raises(RequestError, match=said):
            policy.predict(given, action_mask=mask)


def test_a_server_takes_masks_by_agent_and_names_agents_that_are_unknown(home: Path) -> None:
    with served(trained(RELAY)) as answer:
        seen, both = {"first": [0.0]}, {"first": [0.0], "second": [1.0]}
        for action in (0, 1):
            mask = {"first": [action == 0, action == 1]}
            told = answer({"observation": both, "action_mask": mask, "deterministic": False})
            assert told["action"]["first"] == action
            told = answer({"observations": [seen, seen], "action_masks": [mask, mask]})
            assert told == {"actions": {"first": [action, action]}}
        for body, said in (
            ({"observation": {"third": [0.0]}}, "there is no agent 'third'"),
            ({"observations": [seen, both]}, "an object with the parts first"),
            ({"observations": [{}]}, "there is no agent in the observation"),
            ({"observation": seen, "action_mask": {"third": [1, 1]}}, "there is no agent 'third'"),
            ({"observations": [seen], "action_masks": []}, "action_masks must be a list"),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                answer(body)
            assert said in refused.value.read().decode()
            assert refused.value.code == 400
