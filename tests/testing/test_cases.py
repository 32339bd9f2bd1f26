"""The kit's environments: what they say of themselves is what they do."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.testing.cases import CASES, Case, RandomEnv

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


# -- collectors ------------------------------------------------------------------------------------


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
