"""Environments that fail, lie or hang, and what is said about them: who it was, in which step."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from rlplug import Acted, ActInput, Module
from rlplug.batch.nested import first_leaf
from rlplug.envs import Environments
from rlplug.envs.sync import SyncVector
from rlplug.errors import EnvironmentFailedError
from rlplug.sampling.checks import EnvironmentChecks
from tests.collecting import collector, evaluated

SAME_STEP = AutoresetMode.SAME_STEP
NAN = numpy.nan


def raises(error: BaseException) -> Any:
    raise error


LIES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "raises": (
        lambda: raises(ZeroDivisionError("out")),
        "failed in step after 102 steps: ZeroDivisionError: out",
    ),
    "leaves": (lambda: sys.exit(3), "failed in step after 102 steps: SystemExit: 3"),
    "shape": (
        lambda: {"seen": numpy.zeros(1)},
        "failed in step after 102 steps: ValueError: it gave an observation of shape (1,)",
    ),
    "shape at the end": (
        lambda: {"seen": numpy.zeros(1), "terminated": True},
        "failed in step after 102 steps: ValueError: it gave an observation of shape (1,)",
    ),
    "dies on second reset": (
        lambda: {"terminated": True},
        "failed in reset after 102 steps: OSError: no display",
    ),
    "nan": (
        lambda: {"seen": numpy.array([0.0, NAN])},
        "gave an observation that is not a finite number after 104 steps.",
    ),
    "nan at the end": (
        lambda: {"seen": numpy.array([0.0, NAN]), "terminated": True},
        "gave a final observation that is not a finite number after 104 steps.",
    ),
    "nan reward": (
        lambda: {"reward": NAN},
        "gave a reward that is not a finite number after 104 steps.",
    ),
    "infinite reward": (
        lambda: {"reward": -numpy.inf},
        "gave a reward that is not a finite number after 104 steps.",
    ),
    "huge reward": (
        lambda: {"reward": -1e39},
        "gave a reward that is not a finite number after 104 steps.",
    ),
    "closed mask": (
        lambda: {"info": {"action_mask": numpy.zeros(2, bool)}},
        "gave an action mask that forbids every action after 104 steps.",
    ),
    **{
        f"{name} {value!r}": (
            lambda name=name, value=value: {name: value},  # type: ignore[misc] # bound here
            f"failed in step after 102 steps: TypeError: it gave {name} = {value!r}, expected a "
            "boolean",
        )
        for name in ("terminated", "truncated")
        for value in ("False", 0.5, None, 1, numpy.float64(0.0), torch.tensor(1))
    },
}


class Lies(gymnasium.Env[Any, Any]):
    """Does in its second step what no environment should."""

    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(
        -numpy.inf, numpy.inf, (2,), numpy.float64
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how: str = "") -> None:
        self.how, self.taken, self.resets = how, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        if self.how == "dies on reset" or (self.how == "dies on second reset" and self.resets == 2):
            raise OSError("no display")
        return numpy.full(2, NAN if self.how == "begins with nan" else 0.0), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        told = {"seen": numpy.zeros(2), "reward": 1.0, "terminated": False, "truncated": False}
        lie = LIES[self.how][0]() if self.taken == 2 and self.how else {}
        return tuple({**told, "info": {}, **lie}.values())


class PartsLie(Lies):
    """The same with observations that are no array."""

    observation_space = gymnasium.spaces.Dict({"a": Lies.observation_space})

    def reset(self, **options: Any) -> Any:
        seen, info = super().reset(**options)
        return {"a": seen}, info

    def step(self, action: Any) -> Any:
        seen, *rest = super().step(action)
        return {"a": seen}, *rest


class Zero(Module):
    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(numpy.zeros(len(first_leaf(act.observations)), dtype=numpy.int64))

    forward_inference = forward_exploration


def fault_of(
    vector: Any, steps: int, mode: AutoresetMode = SAME_STEP, *, at: int = 2, **options: Any
) -> EnvironmentFailedError:
    """What is raised in step `at` of a collection from 100 on, or of as many of one step."""
    made = collector(Environments(vector, "Lies", mode), Zero(), seed=0, steps=steps, **options)
    made.start()
    timestep = 100
    for _ in range(at - 1 if steps == 1 else 0):
        made.collect(timestep)
        timestep += vector.num_envs
    with pytest.raises(EnvironmentFailedError) as raised:
        made.collect(timestep)
    return raised.value


@pytest.mark.parametrize("how", LIES)
@pytest.mark.parametrize(("kind", "steps"), [(Lies, 1), (Lies, 4), (PartsLie, 4)])
def test_a_failure_in_mid_episode_names_environment_and_step(
    kind: Any, how: str, steps: int
) -> None:
    fault = fault_of(SyncVector([kind, lambda: kind(how)]), steps)
    said = LIES[how][1]
    if kind is PartsLie:
        said = said.replace("an observation of shape", "an observation with 'a' of shape")
    assert fault.message.startswith(f"environment 'Lies' (2 of 2) {said}")
    hint = "try: allow at least one" if how == "closed mask" else "try: fix the environment"
    assert fault.hints[0].startswith(hint)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("how", ["raises", "nan reward"])
def test_environments_of_gymnasiums_vectors_are_named_without_a_number(how: str) -> None:
    vector = SyncVectorEnv([lambda: Lies(how)] * 2, autoreset_mode=SAME_STEP)
    said = LIES[how][1]
    if how == "nan reward":
        said = f"(1 of 2) {said}"
    assert fault_of(vector, 4).message.startswith(f"environment 'Lies' {said}")
    vector.close()


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (numpy.ones(3, bool), "of shape (3,), expected (2,), after 104 steps."),
        (numpy.ones((1, 2), bool), "of shape (1, 2), expected (2,), after 104 steps."),
        (numpy.array(["a", "b"]), "of <U1, expected booleans, after 104 steps."),
    ],
)
@pytest.mark.parametrize("steps", [1, 4])
def test_a_mask_of_another_kind_is_refused(
    mask: Any, said: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie: Any = lambda: {"info": {"action_mask": mask}}  # noqa: E731 # one of them
    monkeypatch.setitem(LIES, "mask", (lie, ""))
    fault = fault_of(SyncVector([lambda: Lies("mask")] * 2), steps)
    assert fault.message == f"environment 'Lies' gave an action mask {said}"


def test_a_failure_in_the_first_reset_is_named() -> None:
    for how, said in (
        ("dies on reset", "failed in reset after 0 steps: OSError"),
        ("begins with nan", "gave an observation that is not a finite number after 0 steps"),
    ):
        vector = SyncVector([Lies, lambda how=how: Lies(how)])  # type: ignore[misc] # bound here
        made = collector(Environments(vector, "Lies", SAME_STEP), Zero(), seed=0)
        with pytest.raises(EnvironmentFailedError, match=re.escape(f"(2 of 2) {said}")):
            made.start()


@pytest.mark.parametrize("true", [True, numpy.bool_(True), numpy.array([True]), torch.tensor(True)])
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_booleans_of_python_numpy_and_torch_end_episodes(
    true: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIES, "true", (lambda: {name: true}, ""))
    vector = SyncVector([lambda: Lies("true")])
    made = collector(Environments(vector, "Lies", SAME_STEP), Zero(), seed=0, steps=3)
    made.start()
    columns = made.collect(0).columns
    assert columns[name].tolist() == [False, True, False]
    assert (columns["terminated"] | columns["truncated"]).sum() == 1


def test_arms_that_are_absent_may_hold_anything() -> None:
    checks = EnvironmentChecks("Arms", 2, gymnasium.spaces.Discrete(3))

    def said(seen: Any) -> str:
        with pytest.raises(EnvironmentFailedError) as raised:
            checks.check("an observation", seen, 4)
        return raised.value.message

    arms = numpy.ones((2, 3, 4), numpy.float32)
    arms[1, 2] = numpy.nan
    context = numpy.ones((2, 5), numpy.float32)
    present = numpy.array([[1, 1, 1], [1, 1, 0]], bool)
    checks.check("an observation", {"arms": arms, "action_mask": present, "context": context}, 0)
    bad = "gave an observation that is not a finite number after 4 steps."
    there = {"arms": arms, "action_mask": numpy.ones((2, 3), bool), "context": context}
    assert said(there) == f"environment 'Arms' (2 of 2) {bad}"
    # Without a mask, or with one of another size, no arm is known to be absent.
    assert bad in said({"arms": arms, "context": context})
    assert bad in said({"arms": arms, "action_mask": present[:, :2]})
    # What is no arm is never absent.
    context[0, 1] = numpy.inf
    found = said({"arms": arms, "action_mask": present, "context": context})
    assert found == f"environment 'Arms' (1 of 2) {bad}"


class Odd(VectorEnv[Any, Any, Any]):
    """A vector of one's own that gives something else in one place from its second step on."""

    num_envs = 3
    single_observation_space = gymnasium.spaces.Box(-9, 9, (2,), numpy.float32)
    single_action_space = gymnasium.spaces.Discrete(2)
    observation_space = batch_space(single_observation_space, 3)
    action_space = batch_space(single_action_space, 3)

    def __init__(self, name: str, given: Any, mode: AutoresetMode) -> None:
        self.given, self.taken = {name: given}, 0
        self.metadata = {"autoreset_mode": mode}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return numpy.zeros((3, 2), numpy.float32), {}

    def step(self, actions: Any) -> Any:
        self.taken += 1
        told = {
            "observations": numpy.zeros((3, 2), numpy.float32),
            "rewards": numpy.zeros(3),
            "terminated": numpy.zeros(3, bool),
            "truncated": numpy.zeros(3, bool),
        }
        return *{**told, **(self.given if self.taken > 1 else {})}.values(), {}


BOOLEANS = "expected booleans"


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("observations", numpy.zeros((1, 2), numpy.float32), "of shape (1, 2), its space has"),
        ("rewards", numpy.zeros(1), "of shape (1,) for 3 environments"),
        ("rewards", numpy.array(["1", "1", "1"]), "of <U1, expected numbers"),
        ("terminated", numpy.zeros(1, bool), "of shape (1,) for 3 environments"),
        ("terminated", numpy.zeros(3), f"of float64, {BOOLEANS}"),
        ("truncated", numpy.zeros(3, numpy.int8), f"of int8, {BOOLEANS}"),
        ("truncated", numpy.array(["False", None, 0.5], object), f"of object, {BOOLEANS}"),
        ("terminated", [False, False, False], f"of list, {BOOLEANS}"),
    ],
)
def test_what_a_vector_gives_has_its_shapes_and_types(
    name: str, given: Any, said: str, mode: AutoresetMode, steps: int
) -> None:
    fault = fault_of(Odd(name, given, mode), steps, mode)
    start = r"environment 'Lies' failed in step after 103 steps: \w+Error: it gave "
    assert re.match(f"{start}{name} {re.escape(said)}", fault.message)


def test_a_vector_that_truncates_without_a_final_observation_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Forgets(SyncVector):
        def step(self, actions: Any) -> Any:
            *outcome, infos = super().step(actions)
            infos.pop("_final_obs", None)
            return *outcome, infos

    monkeypatch.setitem(LIES, "cut", (lambda: {"truncated": True}, ""))
    fault = fault_of(Forgets([lambda: Lies("cut")]), 1)
    assert "truncates episodes without 'final_obs'" in fault.message


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


class Hangs(Lies):
    """Waits in its third step, until somebody has warned."""

    warned: ClassVar[threading.Event]

    def step(self, action: Any) -> Any:
        self.resets += 1
        if self.resets == 4:
            self.warned.wait(60.0)
        return super().step(action)


class Notes(logging.Handler):
    """Keeps messages, and lets the environment go on."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        Hangs.warned.set()


@pytest.mark.parametrize("steps", [1, 4, 0])
def test_an_environment_that_hangs_is_told_of_once(steps: int) -> None:
    Hangs.warned, notes = threading.Event(), Notes()
    logging.getLogger("rlplug").addHandler(notes)
    environments = Environments(SyncVector([Hangs, Lies]), "Hangs", SAME_STEP)
    try:
        if steps:
            made = collector(environments, Zero(), seed=0, steps=steps, step_timeout=0.3)
            made.start()
            for step in range(0, 16, 2 * steps):
                made.collect(step)
        else:
            evaluated(Zero(), environments, episodes=2, max_steps=5, step_timeout=0.3)
    finally:
        logging.getLogger("rlplug").removeHandler(notes)
    said, *others = notes.messages
    assert said.startswith("rlplug: environment 'Hangs' has been in step for 0.")
    assert f" s at step 4{'' if steps else ' of an evaluation'} (sampling.step_timeout)" in said
    assert len(others) == (0 if steps else 1)
