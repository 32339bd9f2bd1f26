"""What modules are given to act, and what environments are sent."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplug import Acted, ActInput, Module
from rlplug.envs import Environments
from rlplug.envs.sync import SyncVector
from rlplug.errors import PluginError, RunFailedError
from tests.collecting import collector


class Masks(gymnasium.Env[Any, Any]):
    """Tells in its infos what may be chosen: 0 in even steps, 1 in odd ones, anything at last."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def _told(self) -> Any:
        last = self.count == 3
        mask = numpy.array([last or self.count % 2 == 0, last or self.count % 2 == 1])
        return numpy.array([self.count], numpy.float32), {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._told()

    def step(self, action: Any) -> Any:
        self.count += 1
        observation, info = self._told()
        return observation, 0.0, self.count == 3, False, info


class Obeys(Module):
    """Chooses the only action that may be chosen."""

    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(act.action_mask.argmax(1))


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("steps", [1, 6])
def test_masks_from_infos_belong_to_the_observation_they_came_with(
    mode: AutoresetMode, steps: int
) -> None:
    environments = Environments(SyncVectorEnv([Masks, Masks], autoreset_mode=mode), "Masks", mode)
    made = collector(environments, Obeys(), seed=0, steps=steps)
    made.start()
    for _ in range(12 // steps):
        experience = made.collect(0)
        columns = experience.columns
        at_the_end = columns["observations"][:, 0] == 3
        odd = columns["observations"][:, 0] % 2 == 1
        assert columns["action_mask"][~at_the_end, 1].tolist() == odd[~at_the_end].tolist()
        times, envs = numpy.nonzero(experience.ended())
        finals = experience.next_grid("action_mask")[times, envs]
        assert finals.tolist() == [[True, True]] * len(times)


def test_real_numbers_are_sent_within_their_bounds_and_stored_as_chosen() -> None:
    sent: list[Any] = []

    class Bounded(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float32)
        action_space = gymnasium.spaces.Box(
            numpy.array([-1, -numpy.inf], numpy.float32), numpy.array([1, 2], numpy.float32)
        )

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return numpy.zeros(1, numpy.float32), {}

        def step(self, action: Any) -> Any:
            sent.append(action.tolist())
            return numpy.zeros(1, numpy.float32), 0.0, False, False, {}

    class Wild(Module):
        def forward_exploration(self, act: ActInput) -> Acted:
            return Acted(numpy.array([[3.0, 3.0], [-3.0, -3.0]], numpy.float32))

    environments = Environments(SyncVector([Bounded, Bounded]), "Bounded", AutoresetMode.SAME_STEP)
    made = collector(environments, Wild(), seed=0)
    made.start()
    assert made.collect(0).columns["actions"].tolist() == [[3.0, 3.0], [-3.0, -3.0]]
    assert sent == [[1.0, 2.0], [-1.0, -3.0]]


def test_discrete_actions_that_are_not_whole_never_reach_the_environment() -> None:
    class Scores(Module):
        def forward_exploration(self, act: ActInput) -> Acted:
            return Acted(numpy.array([1.0, 0.7]))

    environments = Environments(
        SyncVectorEnv([Masks, Masks], autoreset_mode=AutoresetMode.SAME_STEP),
        "Masks",
        AutoresetMode.SAME_STEP,
    )
    made = collector(environments, Scores(), seed=0, steps=1)
    made.start()
    with pytest.raises(RunFailedError, match=r"module's action 0\.7 of row 1 is no whole number"):
        made.collect(0)


def test_time_goes_on_while_a_rollout_is_collected() -> None:
    seen: list[int] = []

    class Notes(Obeys):
        def forward_exploration(self, act: ActInput) -> Acted:
            seen.append(act.timestep)
            return super().forward_exploration(act)

    environments = Environments(SyncVector([Masks, Masks]), "Masks", AutoresetMode.SAME_STEP)
    made = collector(environments, Notes(), seed=0, steps=3)
    made.start()
    made.collect(100)
    assert seen == [100, 102, 104]


def test_extras_that_come_late_are_refused() -> None:
    class Late(Obeys):
        steps = 0

        def forward_exploration(self, act: ActInput) -> Acted:
            self.steps += 1
            extras = {"log_prob": numpy.zeros(1)} if self.steps == 2 else {}
            return Acted(act.action_mask.argmax(1), extras=extras)

    environments = Environments(SyncVector([Masks]), "Masks", AutoresetMode.SAME_STEP)
    made = collector(environments, Late(), seed=0, steps=3)
    made.start()
    with pytest.raises(PluginError, match="'log_prob' only from step 2 of a collection on"):
        made.collect(0)


class NowAndThen(gymnasium.Env[Any, Any]):
    """Tells a mask with every third observation from the second on."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.taken = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        infos = {"action_mask": numpy.array([False, True])} if self.taken % 3 == 1 else {}
        return numpy.zeros(1, numpy.float32), 0.0, False, False, infos


@pytest.mark.parametrize("kind", [SyncVector, SyncVectorEnv])
@pytest.mark.parametrize("steps", [2, 7])
def test_where_an_environment_tells_no_mask_everything_is_allowed(kind: Any, steps: int) -> None:
    class Zeros(Module):
        def forward_exploration(self, act: ActInput) -> Acted:
            return Acted(numpy.zeros(len(act.observations), numpy.int64))

    vector = kind([NowAndThen, NowAndThen])
    environments = Environments(vector, "NowAndThen", vector.metadata["autoreset_mode"])
    made = collector(environments, Zeros(), seed=0, steps=steps)
    made.start()
    for begun in (0, steps):
        mask = made.collect(2 * begun).columns["action_mask"].reshape(steps, 2, 2)
        for time in range(steps):
            told = (begun + time) % 3 == 1
            assert mask[time].tolist() == [[not told, True]] * 2
