"""Runs with several learners on a local Ray cluster, each with runners of its own."""

from __future__ import annotations

import logging
import os
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest
import torch

import rlplug
from rlplug.config.sections import ScaleSection
from rlplug.errors import RequestError, RunFailedError
from rlplug.scale.cluster import refuse_unmet
from rlplug.scale.launcher import Place
from rlplug.scale.learner_actors import LearnerActors
from rlplug.trees import read_tree
from tests.scale_runs import (
    PPO,
    as_torchrun_starts,
    largest_difference,
    ppo,
)

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
    assert any(line.startswith("resume it: rlplug resume ") for line in said)
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


def test_learners_that_can_never_be_placed_are_named_with_the_runners() -> None:
    def section(**options: Any) -> ScaleSection:
        return ScaleSection(engine="ray", **options)

    # The first learner is in this process, on the first node.
    refuse_unmet([{"CPU": 1.0}, {"CPU": 3.0}], section(learners=2, runners=2))
    refuse_unmet([{"CPU": 2.0, "GPU": 2.0}], section(learners=2, runners=1, learner_cpus=0.5))
    # 0.3 is held three times by 0.9, whatever floats say.
    refuse_unmet([{"CPU": 0.9}], section(learners=2, runners=1, learner_cpus=0.3, runner_cpus=0.3))
    with pytest.raises(RequestError) as raised:
        refuse_unmet([{"CPU": 1.0}, {"CPU": 3.0}], section(learners=2, runners=3))
    assert str(raised.value).startswith(
        "2 learners with CPU 1 each and 3 runners with CPU 1 each can never be placed together: "
        "the cluster has CPU 4 on 2 nodes."
    )
    # Runners of 2 CPUs fit beside the learners only if these are on the node with 3.
    fitting = section(learners=2, runners=1, runner_cpus=2.0)
    refuse_unmet([{"CPU": 2.0}, {"CPU": 2.0}], fitting)
    with pytest.raises(RequestError, match="placed together"):
        refuse_unmet([{"CPU": 1.0}, {"CPU": 2.0}], fitting)
    with pytest.raises(
        RequestError,
        match=r"(?s)the first learner is in this process, .* has GPU 0:.*scale.learner_gpus=0$",
    ):
        refuse_unmet(
            [{"CPU": 2.0}, {"GPU": 8.0}], section(learners=2, learner_cpus=0, learner_gpus=1)
        )


def test_learners_on_other_hosts_have_a_place_of_their_own_there(cluster: str) -> None:
    class Learner: ...

    place = Place(index=2, size=3, host="host", port=1, local_index=2, local_size=3)
    for address, local_size in ((cluster, 1), ("", 3)):
        section = ScaleSection(engine="ray", address=address, learners=3, learner_cpus=0.1)
        actors = LearnerActors(import_module("ray"), section, Learner, [])
        try:
            assert actors.place(place) == attrs.evolve(
                place, local_index=0, local_size=local_size, own_gpu=False
            )
            first = attrs.evolve(place, index=0)
            assert actors.place(first).local_index == 0
            assert (actors.host == "127.0.0.1") == (not address)
            assert actors.ended() == {}
        finally:
            actors.close(kill=True)


THREE = ScaleSection(engine="ray", learners=3, learner_cpus=0.1)
OTHERS = [
    Place(index=index, size=3, host="host", port=1, local_index=index, local_size=3)
    for index in (1, 2)
]


def test_learners_may_end_by_themselves_unless_they_are_to_be_killed(
    cluster: str, tmp_path: Path
) -> None:
    class Learner:
        """Tells when it has ended."""

        def follow(self, place: dict[str, Any], path: list[str]) -> int:
            time.sleep(float(path[1]))
            Path(path[0], str(place["index"])).touch()
            return 0

    def closed(seconds: float, *, kill: bool) -> list[str]:
        """Those that had ended by themselves."""
        folder = tmp_path / f"{seconds}-{kill}"
        folder.mkdir()
        path = [str(folder), str(seconds)]
        actors = LearnerActors(import_module("ray"), THREE, Learner, path)
        actors.start(OTHERS)
        if kill:
            wait_for(2, "ray::Learner")
        actors.close(kill=kill)
        assert actors.ended() == {}
        return sorted(one.name for one in folder.iterdir())

    assert closed(0.5, kill=False) == ["1", "2"]
    assert closed(600.0, kill=True) == []
    wait_for(0, "ray::Learner")


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
        ray.wait(actors._runs, num_returns=2, timeout=60)
        ended = actors.ended()
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
        "  try: rlplug run --scale ray --learners 2, without torchrun"
    )
