"""The probe environments have the answers they say, and tell memory from none."""

from __future__ import annotations

from typing import Any

import pytest

from rlplug.testing.probes import PROBES

# Gymnasium's checker takes a cut after one step for a mistake, and chooses masked actions.


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
