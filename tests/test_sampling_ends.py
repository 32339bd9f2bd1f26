"""`terminated` and `truncated` are booleans: what else an environment gives is refused."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlplug import Acted, ActInput, Module
from rlplug.envs import Environments, make_environments
from rlplug.envs.sync import SyncVector
from rlplug.errors import EnvironmentFailedError
from rlplug.sampling import Collector
from tests.collecting import collector

BOX = gymnasium.spaces.Box(-9, 9, (1,), numpy.float32)
SAME_STEP = AutoresetMode.SAME_STEP


class Ending(gymnasium.Env[Any, Any]):
    """Gives these ends in its second step, and False before."""

    observation_space: gymnasium.Space[Any] = BOX
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, terminated: Any = False, truncated: Any = False) -> None:
        self.ends, self.taken = (terminated, truncated), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        ends = self.ends if self.taken == 2 else (False, False)
        return numpy.zeros(1, numpy.float32), 1.0, *ends, {}


class EndingParts(Ending):
    """The same with observations that are no array."""

    observation_space = gymnasium.spaces.Dict({"a": BOX})

    def reset(self, **options: Any) -> Any:
        seen, info = super().reset(**options)
        return {"a": seen}, info

    def step(self, action: Any) -> Any:
        seen, *rest = super().step(action)
        return {"a": seen}, *rest


class Zero(Module):
    """Chooses action 0 for as many environments as there are."""

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self.num_envs = num_envs

    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(numpy.zeros(self.num_envs, dtype=numpy.int64))


def sampler(vector: Any, steps: int, mode: AutoresetMode = SAME_STEP) -> Collector:
    """A sampler whose next collection begins at step 100, or at the second step for `steps=1`."""
    environments = Environments(vector, "Ending", mode)
    made = collector(environments, Zero(vector.num_envs), seed=0, steps=steps)
    made.start()
    if steps == 1:
        made.collect(100)
    return made


def collect(made: Collector, steps: int, num_envs: int = 2) -> Any:
    return made.collect(100 + num_envs if steps == 1 else 100).columns


@pytest.mark.parametrize(
    "value", ["False", 0.5, None, 1, numpy.float64(0.0), torch.tensor(1)], ids=repr
)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize(("kind", "steps"), [(Ending, 1), (Ending, 4), (EndingParts, 4)])
def test_ends_that_are_no_booleans_fail_with_environment_and_step(
    kind: Any, steps: int, name: str, value: Any
) -> None:
    made = sampler(SyncVector([kind, lambda: kind(**{name: value})]), steps)
    said = (
        "environment 'Ending' (2 of 2) failed in step after 102 steps: TypeError: "
        f"it gave {name} = {value!r}, expected a boolean"
    )
    with pytest.raises(EnvironmentFailedError, match=re.escape(said)):
        collect(made, steps)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("ends", [{"terminated": "False"}, {"truncated": 0.5}])
def test_ends_of_environments_in_processes_of_gymnasium_are_refused_as_well(ends: Any) -> None:
    environments = make_environments(lambda: Ending(**ends), 2, {}, vectorization="async")
    made = collector(environments, Zero(2), seed=0, steps=4)
    made.start()
    ((name, value),) = ends.items()
    said = (
        "environment '<lambda>' failed in step after 102 steps: TypeError: "
        f"it gave {name} = {value!r}, expected a boolean"
    )
    with pytest.raises(EnvironmentFailedError, match=re.escape(said)):
        made.collect(100)
    environments.close()


@pytest.mark.parametrize("true", [True, numpy.bool_(True), numpy.array([True]), torch.tensor(True)])
@pytest.mark.parametrize("steps", [1, 2])
def test_booleans_of_python_numpy_and_torch_end_episodes(true: Any, steps: int) -> None:
    vector = SyncVector([lambda: Ending(true, numpy.bool_(False)), lambda: Ending(False, true)])
    columns = collect(sampler(vector, steps), steps)
    assert columns["terminated"][-2:].tolist() == [True, False]
    assert columns["truncated"][-2:].tolist() == [False, True]


class EndingVector(VectorEnv[Any, Any, Any]):
    """A vector of three environments that gives other ends from its second step on."""

    num_envs = 3
    single_observation_space = BOX
    single_action_space = gymnasium.spaces.Discrete(2)
    observation_space = batch_space(BOX, 3)
    action_space = batch_space(single_action_space, 3)

    def __init__(self, name: str, given: Any, mode: AutoresetMode) -> None:
        self.ends, self.taken = {name: given}, 0
        self.metadata = {"autoreset_mode": mode}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return numpy.zeros((3, 1), numpy.float32), {}

    def step(self, actions: Any) -> Any:
        self.taken += 1
        ends = {"terminated": numpy.zeros(3, bool), "truncated": numpy.zeros(3, bool)}
        if self.taken > 1:
            ends |= self.ends
        return numpy.zeros((3, 1), numpy.float32), numpy.zeros(3), *ends.values(), {}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (numpy.zeros(3), "float64"),
        (numpy.zeros(3, numpy.int8), "int8"),
        (numpy.array(["False", None, 0.5], object), "object"),
        ([False, False, False], "list"),
    ],
)
def test_a_vector_whose_ends_are_no_arrays_of_booleans_is_refused(
    given: Any, said: str, name: str, mode: AutoresetMode, steps: int
) -> None:
    made = sampler(EndingVector(name, given, mode), steps, mode)
    with pytest.raises(EnvironmentFailedError) as raised:
        collect(made, steps, num_envs=3)
    assert raised.value.message == (
        f"environment 'Ending' failed in step after 103 steps: TypeError: it gave {name} of {said},"
        " expected an array of booleans"
    )


def test_a_vector_derived_from_the_one_here_is_looked_at_as_well() -> None:
    class Numbers(SyncVector):
        def step(self, actions: Any) -> Any:
            seen, rewards, terminated, *rest = super().step(actions)
            return seen, rewards, terminated.astype(float), *rest

    with pytest.raises(EnvironmentFailedError, match="failed in step after 100 steps: TypeError"):
        sampler(Numbers([Ending]), 1)
