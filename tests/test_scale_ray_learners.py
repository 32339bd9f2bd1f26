"""Learners on Ray, and how the sampler of a run and its runners talk."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rlplug
from rlplug.config.sections import EnvSection, ScaleSection
from rlplug.envs import Environments
from rlplug.envs.normalization import Normalization
from rlplug.errors import EnvironmentFailedError, RequestError, RunFailedError
from rlplug.scale import ray_sampler
from rlplug.scale.launcher import Place
from rlplug.scale.learner_actors import LearnerActors
from rlplug.scale.ray_sampler import RaySampler
from rlplug.trees import read_tree
from tests.scale_actors import Telling
from tests.scale_runs import PPO, as_torchrun_starts, largest_difference, ppo

pytestmark = pytest.mark.usefixtures("cluster")

# -- scale ray learners ----------------------------------------------------------------------------


RAY = {
    "scale.engine": "ray",
    "scale.runner_cpus": 0.25,
    "scale.learner_cpus": 0.25,
    "scale.learners": 2,
    "scale.runners": 2,
}


def processes(name: str) -> list[psutil.Process]:
    """Those of the cluster that are named so."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if one.name().startswith(name)]


def wait_for(count: int, name: str) -> None:
    """Wait until there are so many processes of a name."""
    deadline = time.monotonic() + 60
    while len(found := processes(name)) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_learners_on_ray_give_bit_for_bit_what_learners_without_it_give(
    store_root: Path,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All find what is found here, also the processes of a cluster that was started before.
    (tmp_path / "found_here.py").write_text(FOUND)
    monkeypatch.syspath_prepend(tmp_path)
    options: dict[str, Any] = {"run.max_updates": 6, "scale.learners": 2, "checkpoint.updates": 3}
    local = ppo("found_here:found", steps=1024, **options)
    part = ppo("found_here:found", steps=1024, **RAY, **{"run.max_updates": 3})
    assert (local.step, part.step) == (768, 384)
    first = local.folder / "checkpoints" / f"step-{384:012d}"
    expected = read_tree(first / "policy")["modules"]["default"]
    for name, value in part.module.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert largest_difference(local.module, part.module) > 1e-3
    options = {"run.max_updates": 6}
    rest = rlplug.resume(part.run_id, options=options, allow_drift=True)
    assert rest.step == 768
    assert largest_difference(local.module, rest.module) < 1e-6
    for name, value in local.metrics.items():
        if name.startswith("rollout/"):
            assert rest.metrics[name] == pytest.approx(value), name
    options = {"run.max_updates": 7, "scale.runners": 4}
    with caplog.at_level(logging.WARNING, "rlplug"):
        assert rlplug.resume(part.run_id, options=options, allow_drift=True).step == 896
    assert "(the run had 2 runners, now it has 4)." in caplog.text


FOUND = """
from functools import partial

import gymnasium

found = partial(gymnasium.make, "CartPole-v1")
"""


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_runner_of_another_learner_is_replaced_and_a_learner_that_dies_ends_the_run_resumable(
    store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before that, they give bit for bit what learners without Ray give."""
    local = ppo(steps=256, **{"scale.learners": 2})
    killed: list[str] = []

    def saved() -> list[Path]:
        found = store_root.glob("work/*/checkpoints/step-*")
        return sorted(one for one in found if local.folder not in one.parents)

    def kill_one_after_the_other() -> None:
        deadline = time.monotonic() + 120
        for name, count in (("ray::Runner", 1), ("ray::Learner", 4)):
            while len(saved()) < count:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.02)
            for one in processes(name):
                one.kill()
                killed.append(name)

    killer = threading.Thread(target=kill_one_after_the_other)
    killer.start()
    options = {**PPO, **RAY, "checkpoint.keep": 100}
    with pytest.raises(RunFailedError) as raised:
        rlplug.run("ppo", "CartPole-v1", steps=10_000_000, options=options)
    killer.join()
    assert killed == ["ray::Runner", "ray::Runner", "ray::Learner"]
    said = [str(raised.value), *raised.value.__notes__]
    assert said[0].startswith("learner 1 of 2 died: its process is gone (killed or crashed).\n")
    assert any(line.startswith("next: rlplug resume ") for line in said)
    assert (local.step, saved()[0].name) == (256, f"step-{256:012d}")
    before = read_tree(saved()[0] / "policy")["modules"]["default"]
    for name, value in local.module.state_dict().items():
        assert torch.equal(value, before[name]), name
    rest = rlplug.resume(
        "last",
        options={
            "scale.engine": "local",
            "scale.learners": 1,
            "scale.learner_cpus": 1.0,
            "scale.runners": 1,
            "scale.runner_cpus": 1.0,
            "run.max_updates": 12,
        },
        allow_drift=True,
    )
    assert rest.step >= 12 * 128
    assert "(the run had 2 learners, now it has 1)." in caplog.text
    wait_for(0, "ray::Runner")
    wait_for(0, "ray::Learner")


THREE = ScaleSection(engine="ray", learners=3, learner_cpus=0.1)
OTHERS = [
    Place(index=index, size=3, host="host", port=1, local_index=index, local_size=3)
    for index in (1, 2)
]


def test_a_learner_that_ends_while_it_starts_is_named(cluster: str) -> None:
    class Learner:
        """Ends at once, in one way or another."""

        def follow(self, place: dict[str, Any], path: list[str]) -> int:
            if place["index"] == 2:
                os._exit(3)
            return 0

    ray = import_module("ray")
    actors = LearnerActors(ray, THREE, Learner, [])
    try:
        actors.refuse_ended()
        actors.start(OTHERS)
        deadline = time.monotonic() + 60
        while len(ended := actors.ended()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert ended.keys() == {1, 2}
        assert ended[1] == "ended with exit code 0"
        # Ray does not always know it yet.
        assert ended[2] in ("is gone (exit code 3)", "is gone (killed or crashed)")
        said = r"^the actor of learner 1 ended with exit code 0 while it started\."
        with pytest.raises(RequestError, match=said):
            actors.refuse_ended()
    finally:
        actors.close(kill=True)


def test_options_that_do_not_fit_together_are_refused(store_root: Path) -> None:
    def refused(**options: Any) -> str:
        with pytest.raises(RequestError) as raised:
            rlplug.run("ppo", "CartPole-v1", options={**PPO, **RAY, **options})
        return str(raised.value)

    assert "scale.runners = 1 cannot be shared equally by 2 learners" in refused(
        **{"scale.runners": 1}
    )
    assert "learner_cpus would have no effect with one learner" in refused(**{"scale.learners": 1})
    assert "compute.device = 'cuda', but scale.learner_gpus = 0." in refused(
        **{"compute.device": "cuda"}
    )


def test_torchrun_and_ray_do_not_both_start_learners(
    store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_torchrun_starts(monkeypatch, 2)
    with pytest.raises(RequestError) as raised:
        rlplug.run("ppo", "CartPole-v1", options={**PPO, **RAY})
    assert str(raised.value) == (
        "torchrun and Ray would both start learners.\n"
        "  try: rlplug run --place ray --learners 2, without torchrun"
    )


# -- scale ray sampler -----------------------------------------------------------------------------


WHY = r"\((exit code 3|killed or crashed)\)"
"""Ray does not always know it yet."""


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
        roster=None,
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
