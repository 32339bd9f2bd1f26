"""Environments with several agents: games, rows, the mapping to modules, collections, saving."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy
import pytest
import torch

from examples.agent_tasks import Meeting
from rlplug.config.sections import EnvSection, ModuleSection
from rlplug.envs.agents import AgentEnvironments, agent_environments
from rlplug.errors import ConfigError, RequestError
from rlplug.evaluation.agents import AgentModules, RandomModule
from rlplug.feeds import (
    Feed,
    FeedSetting,
    ModuleExperience,
    ModuleFeeds,
    OpenFeed,
    Replay,
    Rollout,
    Stream,
)
from rlplug.plugin import Acted, ActInput, Module
from rlplug.sampling import Collector
from tests.agent_games import Countdown, Relay, Unlike
from tests.collecting import agent_collector, evaluated

Sections = dict[str, ModuleSection]


class First(Module):
    """Chooses action 0, and remembers how many it acted for."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.masks: list[Any] = []

    def forward_exploration(self, act: ActInput) -> Acted:
        seen = act.observations
        n = len(seen["observation"] if isinstance(seen, dict) else seen)
        self.sizes.append(n)
        self.masks.append(None if act.action_mask is None else act.action_mask.copy())
        extras = {"log_prob": numpy.zeros(n, numpy.float32)} if act.wants_log_prob else {}
        return Acted(numpy.zeros(n, numpy.int64), extras=extras)

    forward_inference = forward_exploration


def made(env: Callable[..., Any], num_envs: int = 1, **sections: Any) -> AgentEnvironments:
    modules: Sections = {name: ModuleSection(agents=own) for name, own in sections.items()}
    found = agent_environments(env, num_envs, EnvSection(), modules)
    assert found is not None
    return found


def opened(feed: Feed, environments: AgentEnvironments) -> ModuleFeeds:
    feeds: dict[str, OpenFeed] = {}
    for module_id, own in environments.modules.items():
        setting = FeedSetting(
            observation_space=own.vector.single_observation_space,
            action_space=own.action_space,
            num_envs=own.num_envs,
            steps=1000,
            seed=0,
        )
        feeds[module_id] = feed.open(setting)
    return ModuleFeeds(feeds)


def sampler_of(
    environments: AgentEnvironments, feeds: ModuleFeeds, steps: int
) -> tuple[Collector, dict[str, First]]:
    modules = {module_id: First() for module_id in environments.modules}
    sampler = agent_collector(environments, modules, feeds, seed=0, steps=steps)
    sampler.start()
    return sampler, modules


def collected(sampler: Collector, timestep: int = 0) -> ModuleExperience:
    found = sampler.collect(timestep)
    assert isinstance(found, ModuleExperience)
    return found


# -- the mapping -------------------------------------------------------------------------------


def problems(env: Callable[..., Any], **sections: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        made(env, **sections)
    return str(refused.value)


def test_agents_with_equal_spaces_share_the_module_default() -> None:
    assert made(Relay).agents == {"first": "default", "second": "default"}


def test_agents_with_different_spaces_have_modules_named_after_them() -> None:
    assert made(Unlike).agents == {"first": "first", "second": "second"}
    by_id = agent_environments("pettingzoo:mpe/simple_adversary_v3", 1, EnvSection(), {})
    assert by_id is not None
    assert by_id.agents == {"adversary_0": "adversary", "agent_0": "agent", "agent_1": "agent"}
    by_id.close()


def test_modules_name_their_agents_by_pattern_and_by_list() -> None:
    assert made(Relay, one="fir*", two=("second",)).agents == {"first": "one", "second": "two"}


@pytest.mark.parametrize(
    ("env", "sections", "said"),
    [
        (
            Relay,
            {"one": "firts", "two": ()},
            ("2 problems in [modules]", "Did you mean 'first'?", "modules.two.agents   names no"),
        ),
        (Relay, {"one": "first"}, ("agent 'second' is in no module",)),
        (Relay, {"one": "*", "two": "first"}, ("agent 'first' is in several: one, two",)),
        (Unlike, {"both": "*"}, ("observations of its agents differ", "actions of its agents")),
    ],
)
def test_what_is_wrong_with_modules_is_told(
    env: Any, sections: dict[str, Any], said: tuple[str, ...]
) -> None:
    message = problems(env, **sections)
    assert all(words in message for words in said)


# -- making ------------------------------------------------------------------------------------


def refused(env: Any, section: EnvSection | None = None) -> str:
    with pytest.raises(RequestError) as error:
        agent_environments(env, 2, section or EnvSection(), {})
    return str(error.value)


def test_what_has_one_agent_is_left_to_gymnasium() -> None:
    import gymnasium

    assert agent_environments("CartPole-v1", 1, EnvSection(), {}) is None
    make = partial(gymnasium.make, "CartPole-v1")
    assert agent_environments(make, 1, EnvSection(), {}) is None


ONE = Relay()
OTHERS: list[Any] = [Relay(), Relay(), gymnasium.make("CartPole-v1")]


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("pettingzoo:mpe/simple_spread_v99", {}, "No module named"),
        ("pettingzoo:mp/simple_v3", {}, "'pettingzoo:mp/simple_v3' cannot be imported"),
        ("pettingzoo:simple", {}, "'pettingzoo:simple' cannot be imported"),
        (Meeting, {"arguments": {"cels": 3}}, "'Meeting' could not be made with cels=3:"),
        (Meeting, {"frame_stack": 4}, "env.frame_stack is for those with one"),
        (lambda: ONE, {}, "'<lambda>' is the same"),
        (lambda: OTHERS.pop(0), {}, "is a TimeLimit, neither an AECEnv nor a ParallelEnv"),
    ],
)
def test_what_cannot_be_made_is_refused(env: Any, options: dict[str, Any], said: str) -> None:
    assert said in refused(env, EnvSection(**options))


def test_games_that_were_made_before_one_is_refused_are_closed() -> None:
    closed: list[int] = []

    class Closing(Meeting):
        def close(self) -> None:
            closed.append(self.observation_space("agent_0").shape[0])

    # The first is only looked at, to see what is made.
    sizes = iter([5, 6, 7])
    assert "has other agents or spaces" in refused(lambda: Closing(next(sizes)))
    assert len(set(closed)) == 3


# -- collections -------------------------------------------------------------------------------


def test_agents_that_come_and_go_end_and_begin_fragments() -> None:
    environments = made(Relay)
    feeds = opened(Rollout(n_steps=6, batch_size=0), environments)
    sampler, modules = sampler_of(environments, feeds, steps=6)
    experience = collected(sampler)
    # Steps 5 and 6 are the first two of the next episode.
    assert experience.count == 6
    assert modules["default"].sizes == [1, 2, 1, 1, 1, 2]
    (work,) = feeds.take(experience, 6)
    batch = work.batch
    columns = {name: numpy.asarray(batch[name]).ravel().tolist() for name in batch}
    assert columns["rewards"] == [1, 2, 1, 2, 20, 30, 40, 20]
    assert columns["observations"] == [0, 1, 0, 1, 1, 2, 3, 1]
    assert columns["terminated"] == [False, True, False, True, False, False, False, False]
    assert columns["truncated"] == [False] * 6 + [True, False]
    assert numpy.asarray(batch["fragments"]).tolist() == [[0, 2], [2, 4], [4, 7], [7, 8]]
    # The last of `second` goes on in the next collection.
    assert numpy.asarray(batch["final_observations"]).ravel().tolist() == [2, 2, 4, 2]
    assert experience.ended().ravel().tolist() == [False] * 3 + [True] + [False] * 2
    metrics = sampler.take_metrics()
    assert metrics["rollout/return_mean"] == (3 + 3 + 90) / 3


def test_a_replay_buffer_has_the_transitions_of_each_agent() -> None:
    environments = made(Relay, one="first", two="second")
    feeds = opened(Replay(batch_size=64, learning_starts=0, buffer_size=1000), environments)
    sampler, _ = sampler_of(environments, feeds, steps=1)
    seen: dict[str, set[tuple[float, ...]]] = {"one": set(), "two": set()}
    for step in range(1, 13):
        for work in feeds.take(collected(sampler, step - 1), step):
            assert work.by_module is not None
            for module_id, own in work.by_module.items():
                names = ("observations", "rewards", "next_observations", "terminated")
                parts = [numpy.asarray(own.batch[name]).reshape(64) for name in names]
                seen[module_id] |= set(zip(*(part.tolist() for part in parts), strict=True))
    assert seen["one"] == {(0, 1, 1, False), (1, 2, 2, True)}
    assert seen["two"] == {(1, 20, 2, False), (2, 30, 3, False), (3, 40, 4, False)}


def test_an_action_in_turn_is_answered_in_the_next_turn() -> None:
    environments = made(Countdown)
    feeds = opened(Rollout(n_steps=4, batch_size=0), environments)
    sampler, modules = sampler_of(environments, feeds, steps=4)
    experience = collected(sampler)
    own = experience.by_module["default"]
    # left, right, left, then left of the next episode, which is not answered yet.
    assert modules["default"].sizes == [1, 1, 1, 1]
    masks = [one.tolist() for one in modules["default"].masks]
    assert masks == [[[1, 1]], [[1, 0]], [[1, 0]], [[1, 1]]]
    assert own.counts is not None
    assert own.counts.tolist() == [2, 1]
    (work,) = feeds.take(experience, 4)
    assert numpy.asarray(work.batch["rewards"]).tolist() == [1, 0, 1]
    assert numpy.asarray(work.batch["terminated"]).tolist() == [False, True, True]
    assert numpy.asarray(work.batch["log_prob"]).tolist() == [0, 0, 0]
    finals = work.batch["final_observations"]
    assert numpy.asarray(finals["observation"]).ravel().tolist() == [3, 3]
    # Nobody acts there: a mask that allows nothing would leave no value to look at.
    assert numpy.asarray(finals["action_mask"]).tolist() == [[1, 1], [1, 1]]
    second = collected(sampler, 4).by_module["default"]
    # The action that waited is the first row.
    assert second.grid(second.columns["observations"])["observation"][0, 0].tolist() == [0]


def test_a_module_whose_agents_are_not_there_tells_what_it_would_act_on_next() -> None:
    def idle(env: Callable[..., Any], feed: Feed, collections: int, **sections: Any) -> Any:
        environments = made(env, **sections)
        sampler, _ = sampler_of(environments, opened(feed, environments), steps=1)
        for step in range(collections):
            experience = collected(sampler, step)
        ((module_id, own),) = experience.idle.items()
        assert module_id not in experience.by_module
        assert (own.columns, own.steps, own.num_envs) == ({}, 0, 1)
        seen = own.following
        before = str(seen)
        sampler.collect(collections)
        assert str(seen) == before
        return own

    relay = {"one": "first", "two": "second"}
    own = idle(Relay, Rollout(n_steps=1, batch_size=0), 3, **relay)
    assert own.by_environment
    # `first` was terminated in step 2: what it saw last is a final observation, none to act on.
    assert list(own.following) == ["observations"]
    assert own.following["observations"].tolist() == [[1]]
    own = idle(Countdown, Replay(learning_starts=0, buffer_size=100), 5, one="left", two="right")
    assert not own.by_environment
    # `right` has acted, and is not answered before its next turn.
    assert own.following["observations"]["observation"].tolist() == [[1]]
    assert own.following["action_mask"].tolist() == [[1, 0]]
    # The actions of bandits have no next observation.
    assert idle(Relay, Stream(one_step_episodes=True), 3, **relay).following == {}


class Remembers(First):
    """Counts the actions of each agent since its state was fresh."""

    def forward_exploration(self, act: ActInput) -> Acted:
        state = {"acted": act.state["acted"] + 1}
        return Acted(super().forward_exploration(act).actions, state)

    def initial_state(self, n: int) -> Any:
        return {"acted": torch.zeros(n)}


@pytest.mark.parametrize(
    ("interval", "states"),
    [
        # `first` acts in steps 1, 2 and those of the next episode; `second` in 2, 3, 4 and 6.
        (1, [[0, 0], [1, 1], [0, 2], [1, 0]]),
        (2, [[0, 0], [0, 2]]),
        (3, [[0, 0], [1, 0]]),
    ],
)
def test_the_state_of_each_agent_is_that_before_its_own_rows(
    interval: int, states: list[list[float]]
) -> None:
    environments = made(Relay)
    feeds = opened(Rollout(n_steps=6, batch_size=0), environments)
    feeds.by_module["default"].state_interval = interval
    sampler = agent_collector(environments, {"default": Remembers()}, feeds, seed=0, steps=6)
    sampler.start()
    own = collected(sampler).by_module["default"]
    assert own.counts is not None
    assert own.counts.tolist() == [4, 4]
    assert [one["acted"].tolist() for one in own.states] == states


def test_everything_of_episodes_begins_anew_when_environments_are_reset() -> None:
    section = EnvSection(normalize_reward=True, normalize_gamma=1.0)
    environments = agent_environments(Relay, 1, section, {"one": ModuleSection(agents="*")})
    assert environments is not None
    feeds = opened(Rollout(n_steps=1, batch_size=0), environments)
    module = Remembers()
    sampler = agent_collector(environments, {"one": module}, feeds, seed=0, steps=1)
    starts, states = [], []
    for collections in (1, 4):
        sampler.start()
        for step in range(collections):
            own = collected(sampler, step).by_module["one"]
            sampler.absorb()
            starts.append(own.after_reset)
            states.append(own.states[0]["acted"].tolist())
    assert starts == [True, True, False, False, False]
    # Of those that act: `first` in steps 1 and 2, `second` from 2 to 4.
    assert [states[1][0], states[2], states[3][1], states[4][1]] == [0, [1, 0], 1, 2]
    metrics = sampler.take_metrics()
    assert metrics["rollout/return_mean"] == (3 + 90) / 2
    assert metrics["rollout/length_mean"] == (2 + 3) / 2
    normalization = environments.stored["one"].normalization
    assert normalization is not None
    count, mean, _ = normalization.get_state()["moments"][-1]
    # Returns of 1, then 1, 3 and 20, 50, 90.
    assert count == 6
    assert float(mean) == pytest.approx((1 + 1 + 3 + 20 + 50 + 90) / 6)


@pytest.mark.parametrize("env", [Meeting, Countdown, "pettingzoo:mpe/simple_spread_v3"])
def test_a_restored_sampler_collects_what_the_saved_one_does(env: Any) -> None:
    def fresh(seed: int) -> tuple[Collector, AgentEnvironments]:
        environments = made(env, 2)
        feeds = opened(Rollout(n_steps=7, batch_size=0), environments)
        space = environments.modules["default"].action_space
        module = RandomModule(space)
        logged = Logging(module)
        return agent_collector(environments, {"default": logged}, feeds, seed=seed, steps=7), (
            environments
        )

    one, first = fresh(3)
    one.start()
    one.collect(0)
    saved = one.get_state()
    assert saved["not_saved"] == ""
    other, second = fresh(4)
    assert other.set_state(saved, seed=9) == ""
    for step in (14, 28, 42):
        here, there = collected(one, step), collected(other, step)
        for name, own in here.by_module["default"].columns.items():
            assert_equal(own, there.by_module["default"].columns[name])
    first.close()
    second.close()


class Logging(Module):
    """Random actions with a log-probability."""

    def __init__(self, module: RandomModule) -> None:
        super().__init__()
        self.module = module

    def forward_exploration(self, act: ActInput) -> Acted:
        acted = self.module.forward_inference(act)
        return Acted(acted.actions, extras={"log_prob": numpy.zeros(len(acted.actions))})


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        for name, part in one.items():
            assert_equal(part, other[name])
    else:
        numpy.testing.assert_array_equal(one, other)


def test_a_pickle_of_other_games_is_refused() -> None:
    saved = made(Meeting, 2).vector.save(None)
    with pytest.raises(RequestError, match="not those of this run"):
        made(Meeting, 1).vector.restore(saved.pickled)


# -- environments that do not keep their word ---------------------------------------------------


# -- evaluation ---------------------------------------------------------------------------------


def scored(environments: AgentEnvironments, episodes: int) -> Any:
    modules: dict[str, Module] = {name: First() for name in environments.modules}
    return evaluated(AgentModules(modules), environments, episodes=episodes)


def test_an_evaluation_has_the_return_of_each_agent_and_module() -> None:
    metrics = scored(made(Relay, 2, one="first", two="second"), 3).metrics()
    assert metrics["eval/agents/first/return_mean"] == 3
    assert metrics["eval/agents/second/return_mean"] == 90
    assert metrics["eval/modules/two/return_mean"] == 90
    assert metrics["eval/return_mean"] == 46.5
    assert metrics["eval/length_mean"] == 4
    assert metrics["eval/episodes"] == 3
    in_turn = scored(made(Countdown), 2).metrics()
    assert in_turn["eval/agents/left/return_mean"] == 1
    assert in_turn["eval/agents/right/return_mean"] == 1
