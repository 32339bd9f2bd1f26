"""The probe environments have the answers they say, and tell memory from none."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest

from rlplug.testing.probes import PROBES

Step = tuple[float, bool, bool]


# Gymnasium's checker takes a cut after one step for a mistake, and chooses masked actions.
SOUND = [one for one in PROBES if one.name not in ("stay_under_a_time_limit", "masked_best_action")]


# Bounds that are not alike show whether a plugin scales its actions.


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
