"""How the sampler of a run and its runners on Ray talk, with runners that tell what they hear."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplug.config.sections import EnvSection
from rlplug.envs import Environments
from rlplug.envs.normalization import Normalization
from rlplug.errors import EnvironmentFailedError, RequestError, RunFailedError
from rlplug.scale import ray_sampler
from rlplug.scale.ray_sampler import RaySampler
from tests.scale_actors import Telling

WHY = r"\((exit code 3|killed or crashed)\)"
"""Ray does not always know it yet."""

pytestmark = pytest.mark.usefixtures("cluster")


@contextmanager
def sampler_of(
    *,
    dies_at: Callable[[int, int], int] = lambda index, life: -99,
    num_cpus: float = 0.1,
    ahead: int = 0,
    max_restarts: int = 3,
    placement_timeout: float = 300.0,
    made: list[Any] | None = None,
) -> Iterator[tuple[RaySampler, Any]]:
    """A sampler of two runners with two environments each, and whose numbers they get.

    `dies_at`: at which timestep each life of a runner ends; `made` gets all runners.
    """
    ray = import_module("ray")
    actor = ray.remote(num_cpus=num_cpus, max_restarts=0)(Telling)

    def make(index: int, *, life: int, beside: str = "") -> Any:
        kind = actor.options(num_cpus=0) if beside else actor
        runner = kind.remote(index, life, dies_at(index, life))
        if made is not None:
            made.append(runner)
        return runner

    vector = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 4)
    box = gymnasium.spaces.Box(-9, 9, (1,))
    normalization = Normalization(EnvSection(normalize_observation=True), box, 4)
    environments = Environments(vector, "CartPole-v1", AutoresetMode.SAME_STEP, normalization)
    module: Any = torch.nn.Linear(1, 1)
    sampler = RaySampler(
        ray,
        make,
        environments,
        {"default": module},
        {"default": 4},
        runners=2,
        learners=1,
        ahead=ahead,
        max_restarts=max_restarts,
        placement_timeout=placement_timeout,
    )
    try:
        yield sampler, module
    finally:
        sampler.close()
        vector.close()


def test_runners_collect_ahead_with_the_weights_of_that_time(
    capfd: pytest.CaptureFixture[str],
) -> None:
    made: list[Any] = []
    with sampler_of(ahead=1, made=made) as (sampler, module):
        ray = import_module("ray")

        def told() -> list[Any]:
            return [ray.get(one.told.remote())[0] for one in made]

        def set_weight(value: float) -> None:
            torch.nn.init.constant_(module.weight, value)

        set_weight(1.0)
        assert (sampler.version, sampler.step_seconds) == (0, 0.0)
        sampler.absorb()
        sampler.start(7)
        assert told() == [["build", ("start", 7, None)]] * 2
        # Calls, and timesteps beside 100 of the second runner; the weight, and the life.
        first = sampler.collect(0).columns
        assert first["rewards"].tolist() == [1.0, 0.0, 1.0, 100.0]
        assert first["weights"].tolist() == [1.0, 0.0, 1.0, 0.0]
        assert sampler.step_seconds == 2.0
        set_weight(2.0)
        sampler.version = 5
        # Begun with the one before.
        second = sampler.collect(4).columns
        assert second["rewards"].tolist() == [2.0, 0.0, 2.0, 100.0]
        assert second["weights"][0] == 1.0
        # Weights are sent once for each version.
        set_weight(3.0)
        for timestep, before in ((8, 4), (12, 8)):
            later = sampler.collect(timestep)
            assert later.columns["rewards"][1::2].tolist() == [before, 100.0 + before]
            assert later.columns["weights"].tolist() == [2.0, 0.0, 2.0, 0.0]
            assert later.columns["observations"].tolist() == [[5.0]] * 4
        sampler.absorb()
        assert sampler.take_metrics() == {
            "rollout/reward_mean": 1.5,
            "rollout/return_mean": 15.0,
            "rollout/length_mean": 1.5,
        }

        saved = sampler.get_state(environments=True)
        assert [one["index"] for one in saved["runners"]] == [0, 1]
        assert saved["not_saved"] == ""
        assert saved["environments"]
        assert sampler.set_state(saved, seed=3) == ""
        assert [one[-1] for one in told()] == [
            ("set_state", state, 3, None) for state in saved["runners"]
        ]
        lost = sampler.get_state(environments=False)
        assert (lost["not_saved"], lost["environments"]) == ("runner 0 was not asked", b"")
        assert sampler.set_state(lost, seed=4) == "runner 0 was not asked"
        # Those of a checkpoint whose environments were not kept.
        partly = {**saved, "environments": b"", "not_saved": "too large"}
        assert sampler.set_state(partly, seed=4) == "too large"
        _, state, *_ = told()[1][-1]
        assert state == {"index": 1, "environments": b"", "not_saved": "too large"}
        for runners, said in ((1, "1 runner"), (3, "3 runners")):
            other = {**saved, "runners": saved["runners"][:1] * runners}
            assert sampler.set_state(other, seed=9) == f"the run had {said}, now it has 2"
            assert [one[-1] for one in told()] == [("start", 9, None)] * 2
        assert sampler.set_state({}, seed=9) == "the run had no runners, now it has 2"

        # What was under way is forgotten.
        sampler.start()
        with pytest.raises(EnvironmentFailedError, match=r"^runner 0 fails\n  try: less$"):
            sampler.collect(-1)
        sampler.start()
        with pytest.raises(RequestError, match=r"^runner 0 fails\n  try: less$"):
            sampler.collect(-2)
        sampler.start()
        assert sampler.collect(20).columns["rewards"][1] == 20.0
    # What runners print is in the log files of Ray.
    assert "is built" not in "".join(capfd.readouterr())


@pytest.mark.long
def test_runners_that_die_are_replaced_as_often_as_is_allowed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A successor that starts slowly, on a busy machine, is waited for rather than put elsewhere.
    monkeypatch.setattr(ray_sampler, "_ROOM_SECONDS", 600.0)

    def dies_at(index: int, life: int) -> int:
        return {(1, 0): 4, (0, 0): 12, (0, 2): 20}.get((index, life), -99)

    caplog.set_level(logging.WARNING, "rlplug")
    made: list[Any] = []
    with sampler_of(ahead=1, max_restarts=2, dies_at=dies_at, made=made) as (sampler, _):
        sampler.start(7)
        sampler.collect(0)
        sampler.collect(4)
        # What the second runner has under way, and what is begun now, comes from its successor.
        assert sampler.collect(8).columns["rewards"].tolist() == [3.0, 4.0, 1.0, 104.0]
        (record,) = caplog.records
        said = rf"rlplug: runner 1 died and is replaced; its episodes start anew {WHY}\."
        assert re.fullmatch(said, record.getMessage())
        (asked, failure) = import_module("ray").get(made[-1].told.remote())
        assert (asked, failure) == (["build", ("start", None, None)], None)
        assert sampler.take_metrics()["sampling/restarts"] == 1.0
        last = sampler.collect(12).columns
        assert last["rewards"].tolist() == [4.0, 8.0, 2.0, 108.0]
        assert last["weights"][1::2].tolist() == [0.0, 1.0]
        # The first one is found to be gone when it is asked for something else.
        sampler.stats_by_module["default"].sum = lambda numbers: [2 * one for one in numbers]
        assert sampler.take_metrics()["sampling/restarts"] == 4.0
        assert sampler.collect(16).columns["weights"][1::2].tolist() == [2.0, 1.0]
        said = rf"^runner 0 died {WHY}, after 2 others\.\n  try: look at its memory, or --set "
        with pytest.raises(RunFailedError, match=rf"{said}scale\.max_restarts=N$"):
            # With it may be lost what it had sent and nobody had read.
            all(sampler.collect(step) for step in (20, 24))


def test_a_runner_without_room_is_waited_for_and_then_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_sampler, "_TOLD_SECONDS", 0.1)
    caplog.set_level(logging.WARNING, "rlplug")
    made: list[Any] = []
    with (
        pytest.raises(RunFailedError, match=r"no room for runner 0 on the cluster within 0.3 sec"),
        sampler_of(num_cpus=10_000.0, placement_timeout=0.3, made=made),
    ):
        pass
    # Nobody waits for the room any more.
    over = [one.__ray_ready__.remote() for one in made]
    assert import_module("ray").wait(over, num_returns=2, timeout=60)[0] == over
    assert [one.getMessage() for one in caplog.records] == [
        "rlplug: runner 0 waits for room on the cluster."
    ] * 2
