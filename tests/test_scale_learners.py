"""Runs with several learners: real processes that meet over gloo."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch
from torch import distributed as dist
from torch.distributed import HashStore, TCPStore

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
from rlplug.runs.setup import own_seed
from rlplug.sampling.episode_stats import EpisodeStats
from rlplug.scale.launcher import LearnerProcesses, Place, _told, place_of_torchrun
from rlplug.scale.ranks import (
    _ANSWER,
    Ranks,
    _store_of_torchrun,
    differences,
    is_broken_connection,
    lead,
)
from rlplug.tracking.provenance import cores
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
                    if "learner_process" in command_of(child):
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
    assert any(line.startswith("resume it: rlplug resume ") for line in said)
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
            rest.run_id,
            options={"run.max_updates": 8, "scale.learners": 1},
            allow_drift=True,
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


def test_the_first_weight_that_differs_is_named() -> None:
    same = {"default: a": "1", "default: b": "2"}
    assert differences([same, dict(same)]) is None
    assert differences([same, {**same, "default: b": "3"}]) == (1, "default: b")


def test_only_errors_of_connections_count_as_the_death_of_another() -> None:
    assert is_broken_connection(RuntimeError("[/gloo/pair.cc:1] Connection closed by peer"))
    assert not is_broken_connection(RuntimeError("shapes cannot be multiplied"))
    assert not is_broken_connection(ValueError("gloo"))


def test_the_first_learner_has_the_seed_of_the_run() -> None:
    seeds = [own_seed(3, index) for index in range(4)]
    assert seeds[0] == 3
    assert len(set(seeds)) == 4


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


def place_at(store: TCPStore, rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place of a process that torchrun starts, whose agent has this store."""
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "RANK": str(rank)}
    there |= {"WORLD_SIZE": str(size), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    at = {"host": "127.0.0.1", "port": store.port}
    return Place(index=rank, size=size, local_index=rank, local_size=size, by_torchrun=True, **at)


def test_a_group_that_torchrun_restarts_does_not_find_what_the_one_before_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As the agent of torchrun has it, which outlives the groups.
    store = TCPStore("127.0.0.1", 0, is_master=True)
    place = place_at(store, 1, 2, monkeypatch)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    _store_of_torchrun(place).set("failed/1", "why")
    for attempt, is_there in (("0", True), ("1", False)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        assert _store_of_torchrun(place).check(["failed/1"]) is is_there


def test_learners_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlplug.scale.ranks._MEETING", datetime.timedelta(seconds=1))
    store = TCPStore("127.0.0.1", 0, is_master=True)
    place = place_at(store, 0, 4, monkeypatch)
    _store_of_torchrun(place).set("here/2", "[]")
    with pytest.raises(RequestError, match=r"^learners 1, 3 of 4 did not come within 1 seconds\."):
        lead(4, place)


def test_a_process_that_ends_while_it_starts_is_named() -> None:
    at = {"host": "127.0.0.1", "port": 1}
    places = [Place(index=one, size=3, local_index=one, local_size=3, **at) for one in (1, 2)]
    started = LearnerProcesses()
    started.start(places)
    try:
        assert started.ended() == {}
        started.refuse_ended()
        started._processes[1].kill()
        started._processes[1].wait()
        assert started.ended() == {2: "was killed by SIGKILL"}
        said = r"^the process of learner 2 was killed by SIGKILL while it started\."
        with pytest.raises(RequestError, match=said):
            started.refuse_ended()
    finally:
        left = list(started._processes)
        started.close(kill=True)
    assert [one.poll() for one in left] == [-9, -9]
    assert started.ended() == {}
    assert (_told(3), _told(-70)) == ("ended with exit code 3", "was killed by signal 70")


@pytest.mark.parametrize(
    ("reasons", "ended", "said"),
    [
        ({1: "boom", 2: "-"}, {}, "learner 1 of 3 failed: boom."),
        ({1: "-", 2: "-"}, {}, None),
        ({1: "-"}, {}, "learner 2 of 3 died: its process is gone."),
        (
            {2: "boom"},
            {1: "was killed by SIGKILL"},
            "learner 2 of 3 failed: boom; learner 1 of 3 died: its process was killed by SIGKILL.",
        ),
    ],
)
def test_the_learners_that_ended_a_run_are_named_and_why(
    reasons: dict[int, str],
    ended: dict[int, str],
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlplug.scale.ranks._POST_MORTEM_SECONDS", 0.2)
    store = HashStore()
    processes = SimpleNamespace(ended=lambda: ended)
    for index, reason in reasons.items():
        Ranks.failed(cast("Any", SimpleNamespace(_store=store, index=index)), reason.strip("-"))
    ranks: Any = SimpleNamespace(size=3, _store=store, _processes=processes if ended else None)
    assert Ranks.lost(ranks, ValueError("something else")) is None
    found = Ranks.lost(ranks, dist.DistError("gone"))
    assert (None if found is None else str(found).split("\n")[0]) == said


def test_a_learner_on_this_host_that_is_gone_is_not_waited_for() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = os.getpid()
    for pids, ended, lost in (
        ({}, {}, False),
        ({1: here}, {}, False),
        ({1: here, 2: gone.pid}, {}, True),
        ({1: here}, {2: "ended with exit code 1"}, True),
    ):
        processes = SimpleNamespace(ended=lambda ended=ended: ended)
        ranks: Any = SimpleNamespace(_pids=pids, _processes=processes)
        with pytest.raises(dist.DistError) if lost else contextlib.nullcontext():
            Ranks.refuse_lost(ranks)
    alone: Any = SimpleNamespace(_pids={}, _processes=None)
    Ranks.refuse_lost(alone)


def test_the_end_of_the_group_is_waited_for_where_all_end_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlplug.scale.ranks._POST_MORTEM_SECONDS", 0.1)
    may_end, ended = threading.Event(), threading.Event()

    def destroy() -> None:
        if may_end.wait(60):
            ended.set()

    monkeypatch.setattr("rlplug.scale.ranks._destroy_group", destroy)
    ranks: Any = SimpleNamespace(_restore_threads=lambda: None, _processes=None)
    # What is waited for may never come from one that died.
    Ranks.close(ranks, in_order=False)
    assert not ended.is_set()
    threading.Timer(0.5, may_end.set).start()
    Ranks.close(ranks, in_order=True)
    assert ended.is_set()


def test_a_learner_knows_the_others_of_its_host_and_what_the_first_one_knows() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True)
    here, parent = socket.gethostname(), os.getppid()
    everyone = [(here, os.getpid()), (f"not {here}", parent), (here, parent)]
    place = Place(index=0, size=1, host=here, port=store.port, local_index=0, local_size=2)
    with threads_per_process(7):
        ranks = Ranks(place, store, everyone)
        try:
            assert (ranks.is_first, ranks._pids) == (True, {2: parent})
            told = (ranks.in_step, ranks.signal, ranks.is_asked, ranks.due)
            assert told == (False, 0, False, 0)
            group = import_module("torch.distributed.distributed_c10d")._get_default_group()
            assert dist.get_backend() == "gloo"
            # The first one evaluates and saves: the others wait longer for it than it for them.
            assert group._get_backend(torch.device("cpu")).options._timeout == _ANSWER
            # Two learners share the cores.
            assert torch.get_num_threads() == max(min(7, cores() // 2), 1)
            for in_step in (False, True):
                ranks.in_step = in_step
                assert ranks.sum([1.0, 2.5]) == [1.0, 2.5]
                assert ranks.gather_in_step("a") == ["a"]
                with pytest.MonkeyPatch.context() as patch:
                    # What the others would give.
                    patch.setattr(ranks, "gather", lambda value: [value, "b"])
                    assert ranks.gather_in_step("a") == (["a", "b"] if in_step else ["a"])
            assert ranks.least(3.5) == 3.5
            assert ranks.exchange(5) == 5
            assert (ranks.signal, ranks.is_asked, ranks.due) == (0, False, 0)
            assert ranks.exchange(6, signal=2, asked=True, due=7) == 6
            assert (ranks.signal, ranks.is_asked, ranks.due) == (2, True, 7)
            assert (ranks.tell("b"), ranks.give(["c"]), ranks.collect("d")) == ("b", "c", ["d"])
            # What others say is theirs to know: this one tells for the first one alone.
            ranks.index = 1
            assert not ranks.is_first
            assert ranks.exchange(8, signal=2, asked=True, due=7) == 8
            assert (ranks.signal, ranks.is_asked, ranks.due) == (0, False, 0)
        finally:
            ranks.close(in_order=True)
        assert torch.get_num_threads() == 7
    assert not dist.is_initialized()


def test_who_cannot_join_the_others_says_why_and_who_is_gone_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlplug.scale.ranks._ANSWER", datetime.timedelta(seconds=2))
    before = set(threading.enumerate())
    place = Place(index=0, size=2, host="127.0.0.1", port=1, local_index=0, local_size=2)
    with pytest.raises(ValueError, match="store argument cannot be None"):
        Ranks(place, None, [])
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = socket.gethostname()
    with pytest.raises(dist.DistError, match="the process of a learner has ended"):
        Ranks(place, HashStore(), [(here, os.getpid()), (here, gone.pid)])
    for thread in set(threading.enumerate()) - before:
        thread.join()
    # The next one is called as processes call it that have not been in any.
    alone = Place(index=0, size=1, host="127.0.0.1", port=1, local_index=0, local_size=1)
    ranks = Ranks(alone, HashStore(), [])
    name = import_module("torch.distributed.distributed_c10d")._get_default_group().group_name
    ranks.close(in_order=True)
    assert name == "0"


def test_learners_may_end_by_themselves_unless_they_are_to_be_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlplug.scale.launcher._ENDING_SECONDS", 60.0)
    # It prints the platform and ends.
    monkeypatch.setattr("rlplug.scale.launcher.MODULE", "platform")
    place = Place(index=1, size=2, host="host", port=1, local_index=1, local_size=2)
    for kill, code in ((False, 0), (True, -9)):
        started = LearnerProcesses()
        started.start([place])
        (process,) = started._processes
        # Ctrl-C in a terminal reaches the first learner alone.
        assert os.getsid(process.pid) == process.pid
        started.close(kill=kill)
        assert process.poll() == code


def test_a_process_that_ends_before_the_learners_meet_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlplug.scale.ranks._MEETING", datetime.timedelta(seconds=30))
    monkeypatch.setattr("rlplug.scale.launcher.MODULE", "platform")
    said = r"^the process of learner 1 ended with exit code 0 while it started\."
    with pytest.raises(RequestError, match=said):
        lead(2, None)


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
    assert "several seeds cannot share the processes of torchrun." in outcome.err
    assert "--seeds N --learners 2" in outcome.err
