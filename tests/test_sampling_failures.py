"""Environments that fail, and what is said about them."""

from __future__ import annotations

import re
import sys
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from rlplug import Acted, ActInput, Module
from rlplug.envs import Environments
from rlplug.envs.sync import SyncVector
from rlplug.errors import EnvironmentFailedError
from rlplug.sampling import Collector
from tests.collecting import collector

MASKS: dict[str, Any] = {
    "mask of three": numpy.ones(3, bool),
    "mask of nan": numpy.full(2, numpy.nan),
}


class Fails(gymnasium.Env[Any, Any]):
    """Does what no environment should, in its second step."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how: str = "") -> None:
        self.how, self.taken, self.resets = how, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.resets += 1
        if self.how == "dies on reset" or (self.how == "dies on second reset" and self.resets == 2):
            raise OSError("no display")
        seen = numpy.zeros(2, numpy.float32)
        return (seen * numpy.nan if self.how == "begins with nan" else seen), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        seen, reward, ends = numpy.zeros(2, numpy.float32), 1.0, False
        if self.taken == 2:
            if self.how == "wants to leave":
                sys.exit(3)
            if self.how == "raises":
                raise ZeroDivisionError("out of fuel")
            if self.how in ("other shape", "other shape at the end"):
                seen = numpy.zeros(1, numpy.float32)
            if self.how == "huge reward":
                reward = -1e39
            if self.how in ("nan observation", "nan at the end"):
                seen = numpy.array([0.0, numpy.nan], numpy.float32)
            if self.how in ("nan reward", "infinite reward"):
                reward = numpy.nan if self.how == "nan reward" else numpy.inf
            ends = self.how.endswith("at the end") or self.how in (
                "dies on second reset",
                "cut short",
            )
        info = {}
        if self.how == "mask":
            info["action_mask"] = numpy.array([self.taken != 2, False])
        if self.how in MASKS and self.taken == 2:
            info["action_mask"] = MASKS[self.how]
        return (
            seen,
            reward,
            ends and self.how != "cut short",
            self.how == "cut short" and ends,
            info,
        )


class Zero(Module):
    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(numpy.zeros(len(act.observations), dtype=numpy.int64))


def sampler(how: str, steps: int = 1) -> Collector:
    """Two environments, of which the second fails."""
    environments = Environments(
        SyncVector([lambda: Fails(), lambda: Fails(how)]), "Fails", AutoresetMode.SAME_STEP
    )
    return collector(environments, Zero(), seed=0, steps=steps)


SAID = {
    "raises": "environment 'Fails' (2 of 2) failed in step after 102 steps: ZeroDivisionError: out",
    "other shape": "(2 of 2) failed in step after 102 steps: ValueError: it gave an observation of",
    "nan observation": "(2 of 2) gave an observation that is not a finite number after 104 steps.",
    "nan reward": "(2 of 2) gave a reward that is not a finite number after 104 steps.",
    "infinite reward": "(2 of 2) gave a reward that is not a finite number after 104 steps.",
    "other shape at the end": "(2 of 2) failed in step after 102 steps: ValueError: it gave an",
    "huge reward": "(2 of 2) gave a reward that is too large for 32 bits after 104 steps.",
    "nan at the end": "(2 of 2) gave a final observation that is not a finite number after 104",
    "mask": "'Fails' (2 of 2) gave an action mask that forbids every action after 104 steps.",
    "wants to leave": "(2 of 2) failed in step after 102 steps: SystemExit: 3",
    "dies on second reset": "(2 of 2) failed in reset after 102 steps: OSError: no display",
}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("mask of three", "gave an action mask of shape (3,), expected (2,), after 102 steps."),
        (
            "mask of nan",
            "gave an action mask with numbers that are neither true nor false after 10",
        ),
    ],
)
@pytest.mark.parametrize("steps", [1, 4])
def test_a_mask_that_is_none_is_refused(how: str, said: str, steps: int) -> None:
    vector = SyncVector([lambda: Fails(how)])
    environments = Environments(vector, "Fails", AutoresetMode.SAME_STEP)
    made = collector(environments, Zero(), seed=0, steps=steps)
    made.start()
    if steps == 1:
        made.collect(100)
    with pytest.raises(EnvironmentFailedError, match=re.escape(said)):
        made.collect(101 if steps == 1 else 100)


@pytest.mark.parametrize("how", SAID)
@pytest.mark.parametrize("steps", [1, 4])
def test_a_failure_in_mid_episode_names_environment_and_step(how: str, steps: int) -> None:
    made = sampler(how, steps)
    made.start()
    if steps == 1:
        made.collect(100)
    with pytest.raises(EnvironmentFailedError, match=re.escape(SAID[how])) as raised:
        made.collect(102 if steps == 1 else 100)
    assert raised.value.hints[0].startswith(
        "try: allow at least one" if how == "mask" else "try: fix the environment"
    )


def test_a_failure_in_the_first_reset_is_named() -> None:
    with pytest.raises(EnvironmentFailedError, match=r"\(2 of 2\) failed in reset after 0 steps"):
        sampler("dies on reset").start()
    with pytest.raises(EnvironmentFailedError, match=r"not a finite number after 0 steps"):
        sampler("begins with nan").start()


class Odd(VectorEnv[Any, Any, Any]):
    """A vector of one's own, some of whose arrays are of another size from its third step on."""

    num_envs = 3
    single_observation_space = gymnasium.spaces.Box(-9, 9, (2,), numpy.float32)
    single_action_space = gymnasium.spaces.Discrete(2)
    observation_space = batch_space(single_observation_space, 3)
    action_space = batch_space(single_action_space, 3)

    def __init__(self, what: str, mode: AutoresetMode) -> None:
        self.what, self.taken = what, 0
        self.metadata = {"autoreset_mode": mode}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return numpy.zeros((3, 2), numpy.float32), {}

    def step(self, actions: Any) -> Any:
        self.taken += 1
        given = {
            "observations": numpy.zeros((3, 2), numpy.float32),
            "rewards": numpy.zeros(3),
            "terminated": numpy.zeros(3, bool),
            "truncated": numpy.zeros(3, bool),
        }
        if self.taken == 3:
            given[self.what] = given[self.what][:1]
        return *given.values(), {}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("what", ["observations", "rewards", "terminated", "truncated"])
def test_a_vector_that_changes_its_shapes_is_refused(
    what: str, mode: AutoresetMode, steps: int
) -> None:
    made = collector(Environments(Odd(what, mode), "Odd", mode), Zero(), seed=0, steps=steps)
    made.start()
    if steps == 1:
        made.collect(0)
        made.collect(3)
    with pytest.raises(EnvironmentFailedError) as raised:
        made.collect(6 if steps == 1 else 0)
    shape = (
        "of shape (1, 2), its space has (3, 2)" if what == "observations" else "of shape (1,) fo"
    )
    assert raised.value.message.startswith(
        f"environment 'Odd' failed in step after 6 steps: ValueError: it gave {what} {shape}"
    )


def test_a_final_observation_of_several_parts_has_the_shapes_of_its_space() -> None:
    class Parts(Fails):
        observation_space = gymnasium.spaces.Dict(  # type: ignore[assignment] # another kind
            {"near": Fails.observation_space, "far": Fails.observation_space}
        )

        def reset(self, **options: Any) -> Any:
            seen, infos = super().reset(**options)
            return {"near": seen, "far": seen}, infos

        def step(self, action: Any) -> Any:
            seen, *rest = super().step(action)
            return {"near": numpy.zeros(2, numpy.float32), "far": seen}, *rest

    vector = SyncVector([Parts, lambda: Parts("other shape at the end")])
    made = collector(Environments(vector, "Parts", AutoresetMode.SAME_STEP), Zero(), seed=0)
    made.start()
    made.collect(0)
    said = r"it gave an observation with 'far' of shape \(1,\), its space has \(2,\)"
    with pytest.raises(EnvironmentFailedError, match=said):
        made.collect(1)


def test_masks_that_are_none_allow_everything() -> None:
    class Maskless(Fails):
        def step(self, action: Any) -> Any:
            *others, _ = super().step(action)
            return *others, {"action_mask": None if self.taken > 1 else numpy.array([1, 0], bool)}

    vector = SyncVector([Maskless, Maskless])
    made = collector(
        Environments(vector, "Maskless", AutoresetMode.SAME_STEP), Zero(), seed=0, steps=3
    )
    made.start()
    seen = made.collect(0)
    assert seen.columns["action_mask"].tolist() == [[1, 1]] * 2 + [[1, 0]] * 2 + [[1, 1]] * 2


def test_a_failure_in_a_vector_of_gymnasium_names_environment_and_step() -> None:
    vector = SyncVectorEnv([lambda: Fails("raises")])
    made = collector(Environments(vector, "Fails", AutoresetMode.NEXT_STEP), Zero(), seed=0)
    made.start()
    made.collect(0)
    with pytest.raises(
        EnvironmentFailedError, match="'Fails' failed in step after 1,234 steps: Zero"
    ):
        made.collect(1234)


def test_a_vector_that_truncates_without_a_final_observation_is_refused() -> None:
    class Forgets(SyncVector):
        def step(self, actions: Any) -> Any:
            *outcome, infos = super().step(actions)
            infos.pop("_final_obs", None)
            return *outcome, infos

    environments = Environments(
        Forgets([lambda: Fails("cut short")]), "Forgets", AutoresetMode.SAME_STEP
    )
    made = collector(environments, Zero(), seed=0)
    made.start()
    made.collect(0)
    with pytest.raises(EnvironmentFailedError, match="truncates episodes without 'final_obs'"):
        made.collect(1)


class Ends(gymnasium.Env[Any, Any]):
    """Is terminated by its second step, after which nothing may be done."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.taken = 0
        return numpy.zeros(1, numpy.float32), {"action_mask": numpy.array([True, False])}

    def step(self, action: Any) -> Any:
        self.taken += 1
        ends = self.taken == 2
        mask = numpy.array([False, not ends])
        return numpy.ones(1, numpy.float32), 1.0, ends, False, {"action_mask": mask}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("steps", [1, 6])
def test_an_episode_that_has_ended_need_not_allow_anything(mode: AutoresetMode, steps: int) -> None:
    class Allowed(Module):
        def forward_exploration(self, act: ActInput) -> Acted:
            assert act.action_mask.any(-1).all()
            return Acted(act.action_mask.argmax(1))

    vector = SyncVectorEnv([Ends], autoreset_mode=mode)
    made = collector(Environments(vector, "Ends", mode), Allowed(), seed=0, steps=steps)
    made.start()
    for step in range(0, 12, steps):
        made.collect(step)
