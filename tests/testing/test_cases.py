"""The kit's environments: what they say of themselves is what they do."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug import Acted, ActInput
from rlplug.testing.algorithms.policy_gradient import PolicyGradientModule
from rlplug.testing.cases import CASES, Case, RandomEnv
from rlplug.testing.collector import Collector, RandomActions, stacked, to_array
from rlplug.testing.probes import PROBES
from rlplug.testing.probes.entropy import EntropyAhead, NoReward
from rlplug.testing.probes.other_actions import (
    BothBits,
    BoxByObservation,
    BoxTarget,
    BoxThenReward,
    TwoChoices,
)

NAMES = [f"{case.name}{', one step' * case.one_step}" for case in CASES]


def mask_of(observation: Any, info: Any) -> Any:
    inside = isinstance(observation, dict) and "action_mask" in observation
    return observation["action_mask"] if inside else info.get("action_mask")


def boxes(space: Any) -> list[spaces.Box]:
    """All boxes of a space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.values() if isinstance(space, spaces.Dict) else space
        return [box for part in parts for box in boxes(part)]
    return [space] if isinstance(space, spaces.Box) else []


# -- cases -----------------------------------------------------------------------------------------


def test_cases_are_told_apart_by_name_and_length() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {case.one_step for case in CASES} == {False, True}
    kinds = {type(case.action_space) for case in CASES if not case.one_step}
    assert kinds == {spaces.Discrete, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary}
    assert all(case.stored is None for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_case_has_the_spaces_masks_and_lengths_that_it_says(case: Case) -> None:
    env, again = case.make(), case.make()
    for box in [*boxes(case.observation_space), *boxes(case.action_space)]:
        assert (box.low < box.high).all()
    observation, info = env.reset(seed=3)
    repeated, _ = again.reset(seed=3)
    numpy.testing.assert_equal(observation, repeated)
    ends, lengths, masks = [], [], []
    length = 0
    for step in range(20):
        assert case.observation_space.contains(observation)
        mask = mask_of(observation, info)
        assert (mask is not None) == case.masked
        action: Any
        if mask is None:
            env.action_space.seed(step)
            action = env.action_space.sample()
        else:
            # As many as there are actions, of which at least one may be chosen.
            assert mask.shape == (case.action_space.n,)  # type: ignore[attr-defined]
            assert set(mask.tolist()) <= {0, 1}
            masks.append(mask.tolist())
            action = int(mask.argmax())
            assert mask[action] == 1
        observation, reward, terminated, truncated, info = env.step(action)
        assert 0 <= float(reward) < 1
        length += 1
        if terminated or truncated:
            assert terminated != truncated
            ends.append(terminated)
            lengths.append(length)
            length = 0
            observation, info = env.reset()
    # Longer episodes are truncated and terminate in turn.
    assert lengths == ([1] * 20 if case.one_step else [5] * 4)
    assert ends == ([True] * 20 if case.one_step else [False, True, False, True])
    assert not masks or any(0 in mask for mask in masks)


def test_actions_of_other_shapes_and_masked_ones_are_refused() -> None:
    env = RandomEnv(spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(3), masked=True)
    _, info = env.reset(seed=0)
    while info["action_mask"].all():
        _, info = env.reset()
    masked = int(info["action_mask"].argmin())
    with pytest.raises(ValueError, match=f"action {masked} is masked: "):
        env.step(masked)
    with pytest.raises(ValueError, match="is not in Discrete"):
        env.step(numpy.array([0]))
    env = RandomEnv(spaces.Box(0.0, 1.0, (1,)), spaces.MultiBinary(2), masked=True)
    assert env.reset(seed=0)[1] == {"action_mask": None}


# -- probes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("probe", PROBES, ids=[probe.name for probe in PROBES])
def test_answers_are_about_what_is_observed_and_can_be_done(probe: Any) -> None:
    env = probe.make()
    starts = set()
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        starts.add(tuple(numpy.atleast_1d(numpy.asarray(observation, float)).tolist()))
    for answer in probe.answers(probe.gamma):
        seen = numpy.array(answer.observation, numpy.float32)
        assert env.observation_space.contains(seen)
        if answer.start:
            assert answer.observation in starts
        assert (answer.action is None) != (answer.value is None)
        if isinstance(env.action_space, spaces.Discrete):
            assert answer.action is None or env.action_space.contains(answer.action)
            assert answer.mask is None or len(answer.mask) == env.action_space.n
            assert answer.mask is None or answer.mask[answer.action] == 1
        elif answer.action is not None:
            action = numpy.array(answer.action, env.action_space.dtype)
            assert env.action_space.contains(action)
    assert probe.one_step == all(
        ended(probe.make(), action) for action in ([0, 1] if discrete(env) else [None])
    )


def discrete(env: Any) -> bool:
    return isinstance(env.action_space, spaces.Discrete)


def ended(env: Any, action: int | None) -> bool:
    """Whether episodes that begin at seeds 0 to 9 end after this action, not by a time limit."""
    found = []
    for seed in range(10):
        env.reset(seed=seed)
        _, _, terminated, truncated, _ = env.step(
            env.action_space.sample() if action is None else action
        )
        found.append(terminated and not truncated)
    return all(found)


def test_rewards_of_other_actions_by_hand() -> None:
    def reward_of(env: Any, action: Any) -> float:
        env.reset(seed=0)
        _, reward, terminated, truncated, info = env.step(numpy.array(action))
        assert (terminated, truncated, info) == (True, False, {})
        return float(reward)

    assert [reward_of(BoxTarget(), [a]) for a in (2.0, 3.0, -1.0)] == [0.0, -1.0, -9.0]
    rewards = {(0, 0): 0, (1, 0): 1, (0, 2): 1, (1, 2): 2, (1, 1): 1}
    assert {a: reward_of(TwoChoices(), list(a)) for a in rewards} == rewards
    rewards = {(0, 0): 1, (1, 0): 2, (0, 1): 0, (1, 1): 1}
    assert {a: reward_of(BothBits(), list(a)) for a in rewards} == rewards
    with pytest.raises(ValueError, match="is not in Box"):
        reward_of(BoxTarget(), 2.0)
    seen = {}
    for seed in range(10):
        env = BoxByObservation()
        observation, _ = env.reset(seed=seed)
        after, reward, *_ = env.step(numpy.array([0.5]))
        assert after.tolist() == observation.tolist()
        seen[float(observation[0])] = reward
    # The best actions are 0 and 2.
    assert seen == {-1.0: -0.25, 1.0: -2.25}


def test_the_first_action_is_paid_for_one_step_later() -> None:
    env = BoxThenReward()
    for first, reward in ((2.0, 0.0), (-1.0, -9.0)):
        assert env.reset(seed=0)[0].tolist() == [1.0, 0.0]
        seen, *rest = env.step(numpy.array([first]))
        assert (seen.tolist(), rest) == ([0.0, first], [0.0, False, False, {}])
        seen, *rest = env.step(numpy.array([3.0]))
        assert (seen.tolist(), rest) == ([0.0, first], [reward, True, False, {}])


@pytest.mark.parametrize(
    ("env", "never", "always"),
    [
        (EntropyAhead(continuous=True, reward=0.5), [-1.0], [3.0]),
        (EntropyAhead(continuous=True, high=1.0, reward=0.5), [-1.0], [1.0]),
        (EntropyAhead(continuous=False, reward=0.5), 0, 1),
    ],
)
def test_high_first_actions_lead_to_ten_more_steps(env: Any, never: Any, always: Any) -> None:
    never, always = (numpy.array(one) for one in (never, always))
    assert env.action_space.contains(numpy.asarray(always, env.action_space.dtype))
    for seed in range(5):
        assert env.reset(seed=seed)[0].tolist() == [1.0, 0.0]
        seen, *rest = env.step(never)
        assert (seen.tolist(), rest) == ([1.0, 0.0], [0.5, True, False, {}])
        env.reset(seed=seed)
        for step in range(1, 12):
            seen, *rest = env.step(always if step == 1 else never)
            assert rest == [0.0, step == 11, False, {}]
            assert seen.tolist() == pytest.approx([0.0, step / 11])
    middle = (
        numpy.array([env.action_space.low[0] / 2 + env.action_space.high[0] / 2])
        if (isinstance(env.action_space, spaces.Box))
        else None
    )
    if middle is not None:
        goes_on = [not (env.reset(seed=seed), env.step(middle))[1][2] for seed in range(400)]
        # Half of 400, with a deviation of 10.
        assert 150 < sum(goes_on) < 250


def test_episodes_without_reward_have_one_step() -> None:
    env = NoReward()
    assert env.reset(seed=0)[0].tolist() == [1.0]
    seen, *rest = env.step(numpy.array([2.0]))
    assert (seen.tolist(), rest) == ([1.0], [0.0, True, False, {}])
    assert env.action_space == spaces.Box(-1.0, 3.0, (1,), numpy.float32)


# -- collectors ------------------------------------------------------------------------------------


class Watched(PolicyGradientModule):
    """Remembers the steps and the random numbers that it was given, and how it was asked."""

    def __init__(self) -> None:
        super().__init__(4, 3, 8)
        self.told: list[tuple[str, int, int]] = []

    def forward_exploration(self, act: ActInput) -> Acted:
        self.told.append(("explore", act.timestep, act.steps))
        return super().forward_exploration(act)

    def forward_inference(self, act: ActInput) -> Acted:
        self.told.append(("infer", act.timestep, act.steps))
        return super().forward_inference(act)


def test_a_collector_counts_the_steps_of_all_its_environments() -> None:
    module = Watched()
    collector = Collector(CASES[0], module, seed=0, num_envs=3)
    batch = collector.collect(4)
    assert module.told == [("explore", 3 * step, 4000) for step in range(4)]
    assert collector.timestep == 12
    # Step by step, each with its row of all environments.
    assert batch["rewards"].tolist() == pytest.approx(collector.rewards)
    assert len(batch["rewards"]) == 12
    collector.collect(2, greedy=True)
    assert module.told[4:] == [("infer", 12, 4000), ("infer", 15, 4000)]
    other = Watched()
    copied = collector.copy_for(other)
    collector.act_with(other)
    assert len(copied.collect(1)["rewards"]) == len(collector.collect(1)["rewards"]) == 3
    assert [one[1] for one in other.told] == [18, 18]


def test_episodes_of_a_collector_go_on_and_end_where_they_do() -> None:
    """Episodes of five steps are truncated and terminate in turn."""
    batch = Collector(CASES[0], Watched(), seed=0, num_envs=2).collect(10)
    rows = {name: batch[name].reshape(10, 2, -1) for name in batch}
    for env in range(2):
        truncated, terminated = (rows[name][:, env, 0] for name in ("truncated", "terminated"))
        assert truncated.tolist() == [step == 4 for step in range(10)]
        assert terminated.tolist() == [step == 9 for step in range(10)]
        seen, following = rows["observations"][:, env], rows["next_observations"][:, env]
        same = (seen[1:] == following[:-1]).all(1)
        # After the end of an episode, another one begins.
        assert same.tolist() == [step != 4 for step in range(9)]


def test_random_actions_are_of_their_space_and_of_the_generator() -> None:
    space = spaces.Box(-2.0, 2.0, (3,))
    module = RandomActions(space)

    def drawn(seed: int) -> Any:
        act = ActInput({"x": numpy.zeros((4, 1))}, random=numpy.random.default_rng(seed))
        return module.forward_exploration(act).actions

    actions = drawn(0)
    assert actions.shape == (4, 3)
    assert all(space.contains(one) for one in actions)
    assert len({tuple(one) for one in actions.tolist()}) == 4
    assert numpy.array_equal(actions, drawn(0))
    assert not numpy.array_equal(actions, drawn(1))


def test_trees_are_stacked_along_a_new_axis() -> None:
    parts = [{"a": (numpy.array([1]), numpy.array([2]))}, {"a": (numpy.array([3]), [4])}]
    first, second = stacked(parts)["a"]
    assert (first.tolist(), second.tolist()) == ([[1], [3]], [[2], [4]])
    assert to_array([1, 2]).tolist() == [1, 2]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_observations_are_samples_of_the_space_as_gymnasium_draws_them(case: Case) -> None:
    environment, space = case.make(), case.observation_space
    observation, _ = environment.reset(seed=3)
    space.seed(3)
    for _ in range(50):
        if isinstance(space, spaces.Dict):
            own = {"action_mask"} & set(space.spaces)
            seen, drawn = ({**one, **dict.fromkeys(own)} for one in (observation, space.sample()))
        else:
            seen, drawn = observation, space.sample()
        numpy.testing.assert_equal(seen, drawn)
        observation, _ = environment.reset()


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_observations_have_the_type_of_their_space(case: Case) -> None:
    assert case.make().reset(seed=3)[0] in case.observation_space
