"""`sampling.backend = "auto"`: what decides between this process and worker processes."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from rlplug.config.sources import settings_of
from rlplug.envs.sync import SyncVector
from rlplug.registry import Registry
from rlplug.runs import backend
from rlplug.runs.backend import with_backend
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request
from tests.agent_games import Relay


@attrs.define
class Made:
    """Environments that are not stepped."""

    vector: Any
    seconds: float | str
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


def prepared(**options: Any) -> Prepared:
    settings = {"sampling.backend": "auto", "sampling.num_workers": 2, "sampling.num_envs": 4}
    flags = {"run": {"algorithm": "ppo", "env": "CartPole-v1", "steps": 512}}
    request = Request(flags=flags, settings=settings_of({**settings, **options}))
    return prepare(request, Registry.installed())


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `auto` decides where steps take so long here and in workers: `timed(here, there)`."""

    made: list[Made] = []

    def decide(here: float | str, there: float | str = 1.0, kind: type[Any] = SyncVector) -> Any:
        def make(*_: Any, workers: Any = None, **options: Any) -> Made:
            if workers is not None:
                assert (workers.backend, workers.force_sync) == ("workers", True)
            made.append(Made(object.__new__(kind), here if workers is None else there))
            return made[-1]

        monkeypatch.setattr(backend, "make_environments", make)
        monkeypatch.setattr(backend, "_seconds_per_step", lambda made: made.seconds)
        chosen, line = with_backend(prepared(), "CartPole-v1")
        # What is stepped is closed by what steps it.
        assert [one.closed for one in made] == [int(kind is not SyncVector)] * len(made)
        return chosen.config.sampling.backend, line

    return decide


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        ("a random action failed: E", 1.0, "a random action failed: E"),
        (0.000_29, 1e-9, "a step of all environments takes 0.29 ms"),
        (0.01, "a random action failed: E", "a random action failed: E"),
        (
            *(0.01, 0.008_01),
            "a step of all environments takes 10 ms in this process, 8.01 ms in workers",
        ),
    ],
)
def test_environments_stay_in_this_process_if_workers_are_not_faster(
    timed: Any, here: float | str, there: float | str, said: str
) -> None:
    assert timed(here, there) == ("in_process", f"sampling in this process (auto: {said})")


def test_workers_are_taken_if_they_gain_a_quarter(timed: Any) -> None:
    said = "a step of all environments takes 10 ms in this process, 8 ms in workers"
    assert timed(0.01, 0.008) == ("workers", f"sampling in 2 worker processes (auto: {said})")


def test_environments_of_their_own_vector_form_stay_here(timed: Any) -> None:
    said = "sampling in this process (auto: the environment has its own vector form)"
    assert timed(9.0, 1.0, kind=object) == ("in_process", said)


def test_one_worker_and_several_agents_stay_here() -> None:
    chosen, line = with_backend(prepared(**{"sampling.num_workers": 1}), "CartPole-v1")
    assert line == "sampling in this process (auto: there would be one worker)"
    assert chosen.origins["sampling.backend"] == "auto: there would be one worker"
    _, line = with_backend(prepared(), Relay)
    assert line == "sampling in this process (auto: the environment has several agents)"
