"""Runs with several learners: real processes that meet over gloo, and how signals end them."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import rlplug
from rlplug.config.sections import RunConfig
from rlplug.config.sources import Setting
from rlplug.envs.normalization import RunningMoments
from rlplug.errors import RequestError, RunFailedError
from rlplug.registry import Registry
from rlplug.runs.in_step import shared
from rlplug.runs.prepare import prepare
from rlplug.runs.rebuilding import job_of, rebuilt, versions
from rlplug.runs.request import Request
from rlplug.runs.signals import Interrupts
from rlplug.sampling.episode_stats import EpisodeStats
from rlplug.scale.launcher import Place, place_of_torchrun
from rlplug.scale.ranks import is_broken_connection
from rlplug.trees import read_tree
from tests.scale_runs import (
    PPO,
    as_torchrun_starts,
    blas_threads,
    command_of,
    largest_difference,
    linucb_in_one_process_and,
    threads_per_process,
)

# -- scale learners --------------------------------------------------------------------------------


@pytest.mark.long
def test_linucb_over_two_learners_equals_that_of_one(store_root: Path) -> None:
    two = linucb_in_one_process_and(**{"scale.learners": 2})
    assert two.step == 200


@pytest.mark.long
def test_two_learners_of_prioritized_replay_have_the_same_weights_and_share_the_cores(
    store_root: Path,
) -> None:
    # Of a million parameters and more; smaller ones are computed with one thread anyway.
    options = {"num_envs": 2, "learning_starts": 8, "batch_size": 8, "net_arch": [1024, 1024]}
    options |= {"evaluation.episodes": 0, "tracking.enabled": False, "scale.learners": 2}
    options |= {"prioritized": True}
    share = max(min(2, len(os.sched_getaffinity(0)) // 2), 1)
    with threads_per_process(2):
        run = rlplug.run("dqn", "tests.scale_runs:Threads", steps=24, options=options)
        assert (torch.get_num_threads(), blas_threads()) == (2, 2)
    assert run.metrics["rollout/reward_mean"] == 11 * share
    # Weights are compared at the last checkpoint.
    assert (run.status, run.checkpoints) == ("FINISHED", (24,))
    assert run.metrics["time/updates"] > 0


@pytest.mark.long
def test_each_learner_goes_on_with_the_replay_buffer_that_it_had(
    store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"num_envs": 2, "learning_starts": 8, "batch_size": 8, "net_arch": [8]}
    options |= {"evaluation.episodes": 0, "tracking.enabled": False, "scale.learners": 2}
    part = rlplug.run("dqn", "CartPole-v1", options={**options, "run.max_updates": 6})
    rest = rlplug.resume(part.run_id, options={"run.max_updates": 20}, allow_drift=True)
    whole = rlplug.run("dqn", "CartPole-v1", options={**options, "run.max_updates": 20})
    assert rest.step == whole.step > part.step
    assert largest_difference(rest.module, part.module) > 1e-4
    assert largest_difference(rest.module, whole.module) == 0.0
    assert not [one for one in caplog.messages if "anew" in one or "empty" in one]


def test_workers_step_environments_with_one_thread_each(store_root: Path) -> None:
    options: dict[str, Any] = {**PPO, "num_envs": 2, "n_steps": 2, "batch_size": 4}
    options |= {"sampling.backend": "workers", "sampling.num_workers": 2, "checkpoint.updates": 0}
    with threads_per_process(2):
        run = rlplug.run("ppo", "tests.scale_runs:Threads", steps=4, options=options)
    assert run.metrics["rollout/reward_mean"] == 11


def test_a_learner_that_dies_is_named_and_the_resumed_run_equals_one_that_was_not_interrupted(
    store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def saved() -> list[Path]:
        return sorted(store_root.glob("work/*/checkpoints/step-*"))

    def kill_one() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if len(saved()) >= 4:
                for child in psutil.Process().children():
                    if "rlplug.cli.child" in command_of(child):
                        child.kill()
                return
            time.sleep(0.02)

    killer = threading.Thread(target=kill_one)
    killer.start()
    options = {**PPO, "scale.learners": 2, "checkpoint.keep": 1000}
    with pytest.raises(RunFailedError) as raised:
        rlplug.run("ppo", "CartPole-v1", steps=10_000_000, options=options)
    killer.join()
    said = [str(raised.value), *raised.value.__notes__]
    assert said[0].startswith("learner 1 of 2 died: its process was killed by SIGKILL.")
    assert any(line.startswith("next: rlplug resume ") for line in said)
    assert not [one for one in psutil.Process().children() if "learner" in command_of(one)]
    # Every 2 updates of 32 steps of all 4 environments. As if it had died soon after the first.
    first, _, third, *_ = saved()
    assert (first.name, third.name) == (f"step-{256:012d}", f"step-{768:012d}")
    before, whole = (read_tree(one / "policy")["modules"]["default"] for one in (first, third))
    for later in saved()[1:]:
        shutil.rmtree(later)
    rest = rlplug.resume("last", options={"run.max_updates": 6}, allow_drift=True)
    assert rest.step == 768
    after = rest.module.state_dict()
    assert max(float((before[name] - one).abs().max()) for name, one in after.items()) > 1e-3
    assert all(torch.equal(whole[name], one) for name, one in after.items())
    assert not [one for one in caplog.messages if "anew" in one]
    with caplog.at_level(logging.WARNING, "rlplug"):
        alone = rlplug.resume(
            rest.run_id, options={"run.max_updates": 8, "scale.learners": 1}, allow_drift=True
        )
    assert alone.step == 1024
    assert (
        "episodes start anew at step 768: the environments are not restored (the run had 2 "
        "learners, now it has 1)." in caplog.text
    )


def test_a_learner_that_fails_says_why_through_the_first_one(store_root: Path) -> None:
    options = {**PPO, "scale.learners": 2, "num_envs": 2, "n_steps": 2, "batch_size": 4}
    with pytest.raises(RunFailedError) as raised:
        rlplug.run("ppo", "tests.scale_runs:FailsElsewhere", steps=8, options=options)
    said = str(raised.value)
    assert said.startswith("learner 1 of 2 failed: environment 'tests.scale_runs:FailsElsewhere'")
    assert "ValueError: not here" in said
    assert not [one for one in psutil.Process().children() if "learner" in command_of(one)]


def test_torchrun_gives_two_learners_and_one_run(store_root: Path) -> None:
    command = ["-m", "rlplug", "run", "--algo", "ppo", "--env", "CartPole-v1", "--steps", "512"]
    options = [f"--set={name}={json.dumps(value)}" for name, value in PPO.items()]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*launcher, *command, *options, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("{")]
    told = json.loads(line)
    assert (told["status"], told["step"]) == ("FINISHED", 512)
    (folder,) = (store_root / "work").iterdir()
    assert "learners = 2" in (folder / "config.toml").read_text()


def refused(algorithm: Any = "ppo", env: Any = "CartPole-v1", **options: Any) -> str:
    with pytest.raises(RequestError) as raised:
        rlplug.run(
            algorithm, env, options={"tracking.enabled": False, "scale.learners": 2, **options}
        )
    return str(raised.value)


def test_what_two_learners_cannot_share_is_refused_before_they_are_started(
    store_root: Path, tmp_path: Path
) -> None:
    assert refused("linucb", "LinearBandit-v0") == (
        "a run with 2 learners: sampling.num_envs = 1 cannot be shared equally by 2 learners.\n"
        "  try: --set sampling.num_envs=2"
    )
    both = refused(**{"num_envs": 3, "sampling.record": str(tmp_path)})
    assert "experience of learners cannot be recorded" in both
    assert "sampling.num_envs = 3 cannot be shared equally" in both
    assert not [one for one in psutil.Process().children() if "learner" in command_of(one)]


def test_objects_of_this_process_are_refused_with_what_to_do(store_root: Path) -> None:
    import gymnasium

    said = refused(env=lambda: gymnasium.make("CartPole-v1"), num_envs=2)
    assert "other processes cannot make what was given as an object of this process" in said


def test_a_batch_that_cannot_be_shared_is_refused(store_root: Path) -> None:
    from rlplug.feeds import Replay, Rollout, Stream

    assert Rollout(batch_size=64).shared(2) == Rollout(batch_size=32)
    assert Stream(steps_per_update=3).shared(2) == Stream(steps_per_update=3)
    assert Replay(batch_size=64, buffer_size=1000).shared(2) == Replay(
        batch_size=32, buffer_size=500
    )
    with pytest.raises(RequestError, match=r"batch_size = 65 .* 2 learners.\n  try: .*=64"):
        Rollout(batch_size=65).shared(2)
    with pytest.raises(RequestError, match="gradient_steps = -1"):
        Replay(gradient_steps=-1).shared(2)


def test_other_versions_in_another_process_are_refused_with_both() -> None:
    flags = {"run": {"algorithm": "linucb", "env": "LinearBandit-v0"}}
    prepared = prepare(Request(flags=flags), Registry.installed())
    job = job_of(prepared, "LinearBandit-v0")
    again = rebuilt(job)
    assert again.config == prepared.config
    for name, there in (("plugin 'linucb'", "rlplug-linucb 9.9"), ("torch", "torch 1.0")):
        other = {**job, "versions": {**versions(prepared), name: there}}
        with pytest.raises(RequestError) as raised:
            rebuilt(other)
        here = versions(prepared)[name]
        assert str(raised.value).startswith(
            f"{name} is {here} on host {socket.gethostname()}, but {there} where the run"
        )


def test_statistics_of_all_learners_are_those_of_all_rows() -> None:
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).numpy()
    whole, shared, again = (RunningMoments((3,)) for _ in range(3))
    for start in (0, 20):
        part = rows[start : start + 20]
        whole.absorb(part)
        other = (15, part[5:].mean(0), part[5:].var(0))
        shared.absorb(part[:5], lambda own, other=other: [own, other])
        # What the other learner does, which has the same from both in the same order.
        mine = (5, part[:5].mean(0, dtype="f8"), part[:5].var(0, dtype="f8"))
        again.absorb(part[:0], lambda own, told=(mine, other): [*told, own])
    assert (shared.count, again.count) == (40, 40)
    assert shared.mean == pytest.approx(whole.mean, abs=1e-6)
    assert shared.variance == pytest.approx(whole.variance, abs=1e-6)
    assert (shared.mean == again.mean).all()


def test_means_of_episodes_weigh_every_episode_of_all_learners_alike() -> None:
    stats = EpisodeStats(1)
    # The other learner had three steps of reward 2, and one episode of return 6 and length 3.
    other = [3, 6.0, 0, 0.0, 1, 6.0, 1, 3.0]
    stats.sum = lambda numbers: [a + b for a, b in zip(numbers, other, strict=True)]
    ended = torch.tensor([[True]]).numpy()
    stats.add_rollout(torch.ones(1, 1).numpy(), ended, ~ended)
    assert stats.take() == {
        "rollout/reward_mean": 7 / 4,
        "rollout/return_mean": 7 / 2,
        "rollout/length_mean": 2.0,
    }


def test_only_errors_of_connections_count_as_the_death_of_another() -> None:
    assert is_broken_connection(RuntimeError("[/gloo/pair.cc:1] Connection closed by peer"))
    assert not is_broken_connection(RuntimeError("shapes cannot be multiplied"))
    assert not is_broken_connection(ValueError("gloo"))


def test_each_learner_has_an_equal_share_of_all_that_counts_for_the_whole_run() -> None:
    def part(count: int, among: str = "learners", **options: Any) -> RunConfig:
        settings = tuple(Setting(name.replace("__", "."), one) for name, one in options.items())
        run = {"algorithm": "ppo", "env": "CartPole-v1"}
        prepared = prepare(Request(flags={"run": run}, settings=settings), Registry.installed())
        return shared(prepared, count, among).config

    own = part(2, sampling__num_envs=8).sampling
    # What is not limited is not shared.
    assert (own.num_envs, own.num_workers, own.max_batch_size) == (4, 0, 0)
    workers = {"sampling__num_envs": 8, "sampling__backend": "workers"}
    assert part(2, **workers, sampling__num_workers=4).sampling.num_workers == 2
    with pytest.raises(RequestError, match=r"sampling.num_workers = 3 cannot .* by 2 learners"):
        part(2, **workers, sampling__num_workers=3)
    with pytest.raises(RequestError, match=r"sampling.num_envs = 7 cannot .* by 2 runners"):
        part(2, "runners", sampling__num_envs=7)
    ray = {"sampling__num_envs": 12, "scale__engine": "ray", "scale__runners": 6}
    learner = part(3, **ray, scale__learners=3)
    assert (learner.scale.runners, learner.sampling.num_envs) == (2, 4)
    # Ray gives none of them a GPU, unless it is told to.
    assert learner.compute.device == "cpu"
    gpus = {**ray, "scale__learners": 3, "scale__learner_gpus": 1}
    assert part(3, **gpus).compute.device == "auto"
    runner = part(6, "runners", **ray)
    assert (runner.scale.runners, runner.sampling.num_envs) == (6, 2)
    with pytest.raises(RequestError, match=r"scale.runners = 6 cannot .* by 4 learners"):
        part(4, **ray, scale__learners=2)


def test_a_process_that_torchrun_did_not_start_has_no_place() -> None:
    assert place_of_torchrun({"RANK": "1", "WORLD_SIZE": "2"}) is None
    place = place_of_torchrun(
        {
            "TORCHELASTIC_RUN_ID": "x",
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "host",
            "MASTER_PORT": "29500",
        }
    )
    assert place == Place(
        index=3, size=4, host="host", port=29500, local_index=1, local_size=2, by_torchrun=True
    )


def test_another_number_of_processes_than_the_run_has_learners_is_refused(
    store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_torchrun_starts(monkeypatch, 4)
    assert "torchrun started 4 processes, but scale.learners = 2." in refused(num_envs=4)


def test_several_seeds_under_torchrun_are_refused(
    rlplug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_torchrun_starts(monkeypatch, 2)
    outcome = rlplug("run", "--algo", "linucb", "--seeds", "2")
    assert outcome.code == 2
    assert "--seeds cannot be used under torchrun" in outcome.err
    assert "--seeds N --learners 2" in outcome.err


# -- scale ends ------------------------------------------------------------------------------------


COMMAND = [
    *("-m", "rlplug", "run", "--algo", "ppo", "--steps", "10000000"),
    *(f"--set={name}={str(value).lower()}" for name, value in PPO.items()),
]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]

LOUD = """
import os
from pathlib import Path

from gymnasium.envs.classic_control import CartPoleEnv

class Loud(CartPoleEnv):
    def step(self, action):
        print("a step")
        try:
            Path(__file__).with_name("died").touch(exist_ok=False)
        except FileExistsError:
            return super().step(action)
        os.kill(os.getpid(), 9)

"""


def ended_by_signal(
    store_root: Path, command: list[str], number: signal.Signals, **environment: str
) -> tuple[int, str, str]:
    """The exit code and the output of a run that ends with a checkpoint and all its processes."""
    run = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    try:
        deadline = time.monotonic() + 120
        while not list(store_root.glob("work/*/checkpoints/step-*")):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        processes = psutil.Process(run.pid).children(recursive=True)
        started = [f"{one.name()} {command_of(one)}" for one in processes if one.is_running()]
        assert [one for one in started if "rlplug" in one or "ray::Runner" in one]
        # A terminal sends Ctrl-C to all processes; `kill` sends SIGTERM to one.
        (os.killpg if number == signal.SIGINT else os.kill)(run.pid, number)
        out, said = run.communicate(timeout=30)
    finally:
        run.kill()
        run.communicate()
    assert "next: rlplug resume " in said
    (step,) = {
        line.partition("checkpoint of step ")[2].rstrip(".")
        for line in said.splitlines()
        if "checkpoint of step" in line
    }
    assert list(store_root.glob(f"work/*/checkpoints/step-{int(step.replace(',', '')):012d}"))
    _, left = psutil.wait_procs(processes, timeout=5)
    assert not left
    return run.returncode, out, said


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([*COMMAND, "--env=CartPole-v1", "--learners=2"], 130),
        # torchrun has an exit code of its own, and tells its processes of Ctrl-C once more.
        pytest.param([*TORCHRUN, *COMMAND, "--env=CartPole-v1"], 1, marks=pytest.mark.long),
    ],
)
def test_ctrl_c_ends_all_processes_with_a_checkpoint(
    store_root: Path, command: list[str], code: int
) -> None:
    assert ended_by_signal(store_root, command, signal.SIGINT)[0] == code


def test_sigterm_ends_a_run_on_ray_and_with_json_nothing_else_is_printed(
    store_root: Path, tmp_path: Path
) -> None:
    """Neither by Ray nor by an environment, nor of one whose process dies."""
    (tmp_path / "loud_env.py").write_text(LOUD)
    command = [*COMMAND, "--env=loud_env:Loud", "--runners=1", "--json"]
    command += ["--set=scale.runner_cpus=0.25"]
    code, out, said = ended_by_signal(store_root, command, signal.SIGTERM, PYTHONPATH=str(tmp_path))
    assert code == 143
    told = json.loads(out)
    assert (told["status"], told["step"] > 0) == ("KILLED", True)
    assert told["metrics"]["sampling/restarts"] == 1.0
    assert "died and is replaced" in said
    for word in ("ray.io", "raylet", "(pid=", "INFO", "WARNING"):
        assert word not in said


def test_ctrl_c_that_torchrun_repeats_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    as_torchrun_starts(monkeypatch, 2)
    with Interrupts() as interrupts:
        interrupts.check()
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.poll() == (signal.SIGINT, False)
        assert not interrupts.at_once
