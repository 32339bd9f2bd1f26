"""The probe environments have the answers they say, and tell memory from none."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from rlplug import Acted, ActInput, Batch
from rlplug.testing import CheckFailed, Subject
from rlplug.testing.algorithms import QLearning, QLearningModule
from rlplug.testing.checks.probes import check_remembers_the_sign
from rlplug.testing.probes import (
    PROBES,
    AbsentBestArm,
    DelayedReward,
    DiscountedTwoSteps,
    Ending,
    KnownBestArm,
    MaskedBest,
    StayOrLeave,
    TimeLimit,
    TMaze,
)
from rlplug.testing.probes.entropy import EntropyAhead, NoReward
from rlplug.testing.probes.other_actions import (
    BothBits,
    BoxByObservation,
    BoxTarget,
    BoxThenReward,
    TwoChoices,
)

Step = tuple[float, bool, bool]


def played(env: gymnasium.Env[Any, Any], *actions: int) -> list[Step]:
    """Reward, terminated and truncated of each step of the episode that these actions make."""
    env.reset(seed=0)
    steps = [env.step(action) for action in actions]
    return [(reward, terminated, truncated) for _, reward, terminated, truncated, _ in steps]


# Gymnasium's checker takes a cut after one step for a mistake, and chooses masked actions.
SOUND = [one for one in PROBES if one.name not in ("stay_under_a_time_limit", "masked_best_action")]


# Bounds that are not alike show whether a plugin scales its actions.
@pytest.mark.filterwarnings("ignore:.*symmetric and normalized space")
@pytest.mark.parametrize("make", [*(probe.make for probe in SOUND), TMaze])
def test_a_probe_is_a_sound_environment(make: Any) -> None:
    check_env(make(), skip_render_check=True, skip_close_check=True)


def test_long_probes_pay_and_end_as_their_answers_assume() -> None:
    assert played(DiscountedTwoSteps(), 0, 1) == [(0.0, False, False), (1.0, True, False)]
    assert played(DelayedReward(), 1, 0) == [(0.0, False, False), (1.0, True, False)]
    assert played(DelayedReward(), 0, 1) == [(0.0, False, False), (-1.0, True, False)]
    assert played(TimeLimit(), 0, 0, 0, 0) == [*[(1.0, False, False)] * 3, (1.0, False, True)]
    assert played(Ending(), 0, 0, 0) == [*[(1.0, False, False)] * 2, (1.0, True, False)]
    assert played(StayOrLeave(truncated=True), 0) == [(1.0, False, True)]
    assert played(StayOrLeave(truncated=False), 0) == [(1.0, True, False)]
    assert played(StayOrLeave(truncated=True), 1, 0) == [(2.0, False, False), (0.0, True, False)]


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_episodes_of_probes_have_one_step_where_they_say_so(probe: Any) -> None:
    env = probe.make()
    env.action_space.seed(0)
    ends = set()
    for seed in range(20):
        _, info = env.reset(seed=seed)
        _, _, terminated, truncated, _ = env.step(env.action_space.sample(info.get("action_mask")))
        ends.add(terminated or truncated)
    assert probe.one_step == (ends == {True})


@pytest.mark.parametrize(
    ("make", "signs", "rewards"),
    [
        (BoxTarget, (1,), {-1: (-9,), 0: (-4,), 2: (0,), 3: (-1,)}),
        (BoxByObservation, (-1, 1), {-1: (-1, -9), 0: (0, -4), 1: (-1, -1), 2: (-4, 0)}),
        (TwoChoices, (1,), {(0, 0): (0,), (1, 0): (1,), (0, 2): (1,), (1, 2): (2,)}),
        (BothBits, (1,), {(1, 0): (2,), (0, 0): (1,), (1, 1): (1,), (0, 1): (0,)}),
    ],
)
def test_probes_of_other_actions_pay_most_for_the_best_one(
    make: Any, signs: tuple[int, ...], rewards: dict[Any, tuple[int, ...]]
) -> None:
    env = make()
    seen = set()
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        seen.add(sign := int(observation[0]))
        for action, by_sign in rewards.items():
            taken = numpy.array(action, env.action_space.dtype).reshape(env.action_space.shape)
            _, reward, terminated, truncated, _ = env.step(taken)
            assert (reward, terminated, truncated) == (by_sign[signs.index(sign)], True, False)
    assert seen == set(signs)
    with pytest.raises(ValueError, match="is not in"):
        env.step(numpy.zeros(3))


def test_a_reward_for_a_box_may_come_a_step_later() -> None:
    env = BoxThenReward()
    assert env.reset(seed=0)[0].tolist() == [1, 0]
    seen, *rest = env.step(numpy.array([1.5], numpy.float32))
    assert (seen.tolist(), rest) == ([0, 1.5], [0.0, False, False, {}])
    seen, *rest = env.step(numpy.array([2.0], numpy.float32))
    assert (seen.tolist(), rest) == ([0, 1.5], [-0.25, True, False, {}])


def test_the_first_action_decides_how_long_entropy_is_ahead() -> None:
    end, step = (0.25, True, False), (0.0, False, False)
    for env, low, high in (
        (EntropyAhead(continuous=True, reward=0.25), [-1.0], [3.0]),
        (EntropyAhead(continuous=False, reward=0.25), 0, 1),
    ):
        assert played(env, low) == [end]  # type: ignore[arg-type] # a Box, too
        following = [step] * 10 + [(0.0, True, False)]
        assert played(env, high, *[low] * 10) == following  # type: ignore[arg-type]
    first, _ = env.reset(seed=0)
    assert first.tolist() == [1, 0]
    seen = [env.step(1)[0].tolist() for _ in range(11)]
    assert seen == [[0, pytest.approx(at / 11)] for at in range(1, 12)]
    half = EntropyAhead(continuous=True)
    lengths = []
    for seed in range(200):
        half.reset(seed=seed)
        lengths.append(half.step(numpy.array([1.0]))[2])
    assert numpy.mean(lengths) == pytest.approx(0.5, abs=0.1)
    none = NoReward()
    none.reset(seed=0)
    assert none.step(numpy.array([2.0]))[1:4] == (0.0, True, False)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_answers_are_of_what_a_probe_shows_and_takes(probe: Any) -> None:
    env = probe.make()
    space = env.observation_space
    for answer in probe.answers(0.5):
        if isinstance(space, gymnasium.spaces.Dict):
            assert answer.mask is None or len(answer.mask) == env.action_space.n
            continue
        observation = numpy.array(answer.observation, space.dtype).reshape(space.shape)
        assert space.contains(observation)
        if answer.action is not None:
            action = numpy.array(answer.action, env.action_space.dtype)
            assert env.action_space.contains(action.reshape(env.action_space.shape))


def test_values_follow_from_gamma() -> None:
    answers = {probe.name: probe.answers(0.5) for probe in PROBES}
    assert [one.value for one in answers["discounted_two_steps"]] == [0.5, 1.0]
    assert [one.value for one in answers["ending"]] == [1.75, 1.5, 1.0]
    assert [one.value for one in answers["time_limit"]] == [2.0]


def test_variants_are_tried_where_their_code_may_go_wrong() -> None:
    # One of each kind: several observations and steps, ends, masks, arms, and continuous actions.
    assert {probe.name for probe in PROBES if probe.for_variants} == {
        "reward_by_observation_and_action",
        "delayed_reward",
        "ending",
        "masked_best_action",
        "known_best_arm",
        "box_target_one_step_later",
    }


def test_masked_and_absent_arms_cannot_be_chosen() -> None:
    masked, absent = MaskedBest(), AbsentBestArm()
    masked.reset(seed=0)
    masked.mask[2] = 0
    with pytest.raises(ValueError, match=r"action 2 is masked: \[1, 1, 0\]"):
        masked.step(2)
    observation, _ = absent.reset(seed=0)
    assert absent.observation_space.contains(observation)
    for name in ("context", "arms"):
        box = absent.observation_space[name]
        assert (box.low < box.high).all()
    best = int(observation["arms"][:, 0].argmax())
    with pytest.raises(ValueError, match=f"arm {best} is absent"):
        absent.step(best)


def test_the_third_arm_pays_most() -> None:
    env = KnownBestArm()
    env.reset(seed=0)
    means = [numpy.mean([env.step(arm)[1] for _ in range(200)]) for arm in range(4)]
    assert numpy.round(means, 1).tolist() == [0.2, 0.4, 0.9, 0.6]


def test_the_sign_is_seen_only_at_the_start_of_the_maze() -> None:
    env = TMaze(length=2)
    first, _ = env.reset(seed=0)
    seen = [env.step(0)[0].tolist() for _ in range(2)]
    assert (abs(first[0]), seen) == (1.0, [[0.0, 0.0], [0.0, 1.0]])
    right = int(first[0] > 0)
    assert env.step(right)[1:3] == (1.0, True)


class RemembersModule(QLearningModule):
    """Q-learning on what it sees and the last sign that it saw."""

    def initial_state(self, n: int) -> dict[str, torch.Tensor]:
        return {"sign": torch.zeros(n)}

    def sign(self, act: ActInput) -> Any:
        seen, before = act.observations[:, 0], numpy.asarray(act.state["sign"])
        return numpy.where(seen != 0, seen, before)

    def acted(self, act: ActInput, way: Any) -> Acted:
        sign = self.sign(act).astype(numpy.float32)
        act.observations = numpy.column_stack((act.observations, sign))
        return Acted(way(act).actions, {"sign": torch.from_numpy(sign)}, {"sign": sign})

    def forward_exploration(self, act: ActInput) -> Acted:
        return self.acted(act, super().forward_exploration)

    def forward_inference(self, act: ActInput) -> Acted:
        return self.acted(act, super().forward_inference)


class Remembers(QLearning):
    """Small Q-learning with a memory made by hand."""

    Module: ClassVar[type[Any]] = RemembersModule

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        inputs, actions = observation_space.shape[0] + 1, int(action_space.n)
        return self.Module(inputs, actions, config.width, config.epsilon)

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        sign = batch["sign"].reshape(-1, 1).to(batch["observations"].dtype)
        wide = {
            name: torch.cat((batch[name], sign), 1)
            for name in ("observations", "next_observations")
        }
        prepared = super().prepare_batch(module, config, batch.with_columns(wide))
        return {**prepared, **wide}


class Forgets(Remembers):
    """The same without a memory to speak of."""

    class Module(RemembersModule):
        def sign(self, act: ActInput) -> Any:
            return act.observations[:, 0]


def test_a_memory_finds_its_way_through_the_maze() -> None:
    check_remembers_the_sign(Subject.of(Remembers, trainings=1))


def test_forgetting_is_told_from_remembering() -> None:
    with pytest.raises(CheckFailed, match="0 is what forgetting earns"):
        check_remembers_the_sign(Subject.of(Forgets, trainings=1))
