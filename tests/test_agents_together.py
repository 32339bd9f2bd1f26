"""What is learned from beside what one agent sees: the global state, and teams as one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

import rlplug as library
from examples.agent_tasks import Meeting
from rlplug.config.sections import EnvSection, ModuleSection
from rlplug.envs.agents import AgentEnvironments, agent_environments
from rlplug.errors import EnvironmentFailedError
from rlplug.feeds import Feed, FeedSetting, ModuleExperience, ModuleFeeds, Replay, Rollout
from rlplug.plugin import Acted, ActInput, Module
from rlplug.sampling import Collector
from tests.agent_games import Countdown, Relay
from tests.agent_runs import (
    ADVERSARY,
    COUNTDOWN,
    LOTTERY,
    MEETING,
    RELAY,
    assert_same,
    served,
    told,
    trained,
    weights,
)
from tests.collecting import agent_collector


class Counting(Relay):
    """`Relay` whose state is 100 more than the step, as long as it does not lie."""

    def state(self) -> Any:
        if self.lie == "failing":
            raise ValueError("no state today")
        if self.lie == "words":
            return numpy.array(["a", "b"])
        longer = self.lie == "longer" and self.time == 3
        return numpy.full(2 if longer else 1, 100.0 + self.time, numpy.float32)


class Zero(Module):
    """Chooses action 0."""

    def forward_exploration(self, act: ActInput) -> Acted:
        seen = act.observations
        n = len(seen["observation"] if isinstance(seen, dict) else seen)
        return Acted(numpy.zeros(n, numpy.int64), extras={"log_prob": numpy.zeros(n)})


def stored(
    env: Callable[..., Any], feed: Feed, num_envs: int = 1, **sections: Any
) -> tuple[AgentEnvironments, ModuleFeeds]:
    modules = {name: ModuleSection(agents=own) for name, own in sections.items()}
    made = agent_environments(env, num_envs, EnvSection(), modules)
    assert made is not None
    made = made.storing(dict.fromkeys(made.modules, feed))
    feeds = {}
    for module_id, own in made.stored.items():
        setting = FeedSetting(
            observation_space=own.vector.single_observation_space,
            action_space=own.action_space,
            num_envs=own.num_envs,
            steps=1000,
            seed=0,
        )
        feeds[module_id] = feed.open(setting)
    return made, ModuleFeeds(feeds)


def sampled(environments: AgentEnvironments, feeds: ModuleFeeds, steps: int) -> Collector:
    modules = {module_id: Zero() for module_id in environments.modules}
    sampler = agent_collector(environments, modules, feeds, seed=0, steps=steps)
    sampler.start()
    return sampler


def listed(column: Any) -> Any:
    return numpy.asarray(column).squeeze().tolist()


def rollout(env: Callable[..., Any], steps: int) -> Any:
    environments, feeds = stored(env, Rollout(n_steps=steps, batch_size=0, global_state=True))
    experience = sampled(environments, feeds, steps).collect(0)
    assert isinstance(experience, ModuleExperience)
    (work,) = feeds.take(experience, steps)
    return work.batch


# -- the global state ----------------------------------------------------------------------------


def test_rows_have_the_state_that_the_environment_had_when_the_agent_acted() -> None:
    batch = rollout(Counting, 6)
    # `first` acts at 0 and 1, `second` at 1, 2 and 3; then the next episode begins.
    assert listed(batch["observations"]["observation"]) == [0, 1, 0, 1, 1, 2, 3, 1]
    assert listed(batch["observations"]["state"]) == [100, 101, 100, 101, 101, 102, 103, 101]
    # Terminated at 2, cut off by the end of the rollout at 2, truncated at 4, cut off at 2.
    assert listed(batch["final_observations"]["state"]) == [102, 102, 104, 102]


def test_without_a_state_the_observations_of_all_agents_are_joined() -> None:
    batch = rollout(Meeting, 2)
    seen, state = (numpy.asarray(batch["observations"][name]) for name in ("observation", "state"))
    both = numpy.concatenate([seen[:2], seen[2:]], axis=1)
    assert state.shape == (4, 24)
    numpy.testing.assert_array_equal(state, numpy.concatenate([both, both]))


def test_the_state_is_that_of_an_agents_turn() -> None:
    batch = rollout(Countdown, 4)
    # Of each agent the number of actions so far: `left` acts at 0 and 2, `right` at 1.
    assert numpy.asarray(batch["observations"]["state"]).tolist() == [[0, 0], [2, 2], [1, 1]]
    assert numpy.asarray(batch["final_observations"]["state"]).tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (partial(Counting, lie="failing"), r"failed in its first state\(\): ValueError: no state"),
        (partial(Counting, lie="words"), r"failed in its first state\(\): ValueError: could not"),
    ],
)
def test_a_state_that_cannot_be_used_is_refused(env: Any, said: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=said):
        stored(env, Rollout(n_steps=6, batch_size=0, global_state=True))


# -- teams ---------------------------------------------------------------------------------------


def transitions(env: Callable[..., Any], feed: Replay, steps: int, **sections: Any) -> Any:
    """All different transitions, by the state that they lead to."""
    environments, feeds = stored(env, feed, **sections)
    sampler = sampled(environments, feeds, 1)
    seen: dict[Any, Mapping[str, Any]] = {}
    for step in range(1, steps + 1):
        experience = sampler.collect(step - 1)
        for work in feeds.take(experience, step):
            batch = work.batch
            for row in range(batch.rows):
                one = {
                    "observation": listed(batch["observations"]["observation"][row]),
                    "present": listed(batch["observations"]["present"][row]),
                    "reward": float(batch["rewards"][row]),
                    "terminated": bool(batch["terminated"][row]),
                    "truncated": bool(batch["truncated"][row]),
                    "next_present": listed(batch["next_observations"]["present"][row]),
                    "next_state": listed(batch["next_observations"]["state"][row]),
                }
                seen[one["next_state"]] = one
    return list(seen.values())


TEAM = Replay(batch_size=64, learning_starts=0, buffer_size=1000, team=True, global_state=True)


def test_a_team_has_one_row_for_each_step_with_the_mean_reward() -> None:
    found = sorted(transitions(Counting, TEAM, 12), key=lambda one: float(one["next_state"]))
    # Rewards are the step's, for `second` ten times it; the mean is over both agents.
    assert [one["reward"] for one in found] == [0.5, (2 + 20) / 2, 15, 20]
    assert [one["present"] for one in found] == [[1, 0], [1, 1], [0, 1], [0, 1]]
    # `first` was terminated; `second` is truncated with the episode, so that its value counts.
    assert [one["next_present"] for one in found] == [[1, 1], [0, 1], [0, 1], [0, 1]]
    assert [one["terminated"] for one in found] == [False] * 4
    assert [one["truncated"] for one in found] == [False, False, False, True]
    assert [one["next_state"] for one in found] == [101, 102, 103, 104]


def test_a_team_that_has_left_is_terminated_while_others_go_on() -> None:
    found = transitions(Counting, TEAM, 12, one="first", two="second")
    ends = {one["next_state"]: (one["terminated"], one["truncated"]) for one in found}
    assert ends[102.0] == (True, False) or ends[102.0] == (False, False)
    environments, feeds = stored(Counting, TEAM, one="first", two="second")
    experience = sampled(environments, feeds, 4).collect(0)
    assert isinstance(experience, ModuleExperience)
    one, two = (experience.by_module[name] for name in ("one", "two"))
    assert one.count == 2
    assert one.columns["terminated"][:2].tolist() == [False, True]
    assert two.count == 3
    assert two.grid(two.columns["truncated"])[:3, 0].tolist() == [False, False, True]


def test_a_restored_team_collects_what_the_saved_one_does() -> None:
    one, feeds = stored(partial(Counting), TEAM, 2)
    other, more = stored(partial(Counting), TEAM, 2)
    here, there = sampled(one, feeds, 3), sampled(other, more, 3)
    here.collect(0)
    there.set_state(here.get_state(), seed=5)
    for step in (6, 12):
        mine, its = here.collect(step), there.collect(step)
        assert isinstance(mine, ModuleExperience)
        assert isinstance(its, ModuleExperience)
        first, second = mine.by_module["default"], its.by_module["default"]
        for name, part in first.columns["observations"].items():
            numpy.testing.assert_array_equal(part, second.columns["observations"][name])


BODIES = ("body", "critic_body")
CENTRAL: dict[str, Any] = {"central_critic": True}


# -- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        ("ppo", COUNTDOWN, {**CENTRAL, "sampling__num_envs": 2}),
        ("ppo", ADVERSARY, CENTRAL),
        ("ppo", RELAY, {**CENTRAL, "memory": "gru", "memory_size": 8}),
        ("vdn", RELAY, {"mixing": "qmix"}),
        pytest.param("vdn", MEETING, {"n_step": 3, "dueling": True}, marks=pytest.mark.long),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    algorithm: str, env: str, options: dict[str, Any], home: Path
) -> None:
    whole = trained(env, algorithm, steps=256, **options)
    part = trained(env, algorithm, steps=128, **options)
    rest = library.resume(part.run_id, steps=256)
    assert_same(weights(whole), weights(rest))


@pytest.mark.parametrize(
    ("algorithm", "options"), [("ppo", CENTRAL), ("vdn", {}), ("vdn", {"mixing": "qmix"})]
)
def test_acting_needs_the_observation_alone(
    algorithm: str, options: dict[str, Any], home: Path
) -> None:
    run = trained("tests.agent_games:Drawn", algorithm, evaluation__video=True, **options)
    assert sorted((run.folder / "videos").glob("*.mp4"))
    assert len(library.evaluate(run.folder, episodes=2).agent_returns) == 2
    seen = numpy.ones(1, numpy.float32)
    chosen = library.load(run.folder, checkpoint="last").predict({"second": seen})
    assert set(chosen) == {"second"}
    with served(run) as answer:
        assert answer({"observation": {"second": [1.0]}}) == {
            "action": {"second": chosen["second"]}
        }


def test_a_central_critic_knows_what_no_agent_sees(home: Path) -> None:
    """Both are paid 2 more or 2 less: to know nothing of it is an error of 4 in the mean."""
    options: dict[str, Any] = {"env__prize": 2.0, "env__max_steps": 1, "learning_rate": 3e-3}
    losses = {
        central: trained(LOTTERY, steps=1_000, central_critic=central, **options).metrics[
            "train/value_loss"
        ]
        for central in (True, False)
    }
    assert losses[True] < 0.4
    assert losses[False] > 3


def test_a_central_critic_is_refused_by_algorithms_without_one() -> None:
    assert "central_critic   unknown option" in told(MEETING, "dqn", **CENTRAL)
    said = told(MEETING, shared_encoder=True, **CENTRAL)
    assert "central_critic has an encoder of its own" in said


def test_normalized_observations_are_refused_beside_the_state() -> None:
    said = told(MEETING, env__normalize_observation=True, **CENTRAL)
    assert "env.normalize_observation is not for" in said
    assert "env.normalize_reward" in told(MEETING, "vdn", env__normalize_reward=True)


def test_teams_are_refused_where_agents_act_in_turn() -> None:
    assert "act in turn" in told(COUNTDOWN, "vdn")


# -- the tasks -----------------------------------------------------------------------------------
