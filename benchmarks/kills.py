"""Kill runs at random moments, resume them, and compare them with runs that were not killed.

python benchmarks/kills.py [--kills 300] [--seed 0] [--workers 2] [--cases ppo,dqn] [--short]
    [--keep FOLDER]

Every trial starts one run with SQLite tracking and kills its process (SIGKILL) at a random moment,
of its whole life or, four times out of five, of its life after the start-up: training, evaluation,
writing of checkpoints, uploads, closing. Sometimes the resume is killed, too, once or twice. In the
end the run is resumed until it has finished, and these must hold:

- it has the id that its first process printed, and the same state at its end as the reference run
  (the digest of the last checkpoint, which covers weights, optimizers, generators and counters);
- MLflow has each metric of the reference at the same steps with the same values, none twice
  (metrics of time aside), and the status FINISHED;
- each evaluated checkpoint that is kept is one complete model in MLflow, with its scores and files,
  and no other model has any;
- nothing half-made is left in the runs folder, and no run is left RUNNING after `rlplug runs sync`;
- no worker process and no shared memory of a killed process is left.

Every installed algorithm has to have a case; see CASES.

Processes are forked from one that has imported everything, so that a kill falls into the run and
not into its imports; every tenth trial starts real commands instead, half of those without a
database, which they have to create.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import _children  # type: ignore[attr-defined] # not in the stubs
from pathlib import Path
from typing import Any

import attrs
import numpy

from rlplug.registry import ALGORITHM, Registry

CARTPOLE = ("--env", "CartPole-v1", "--set", "evaluation.episodes=3")
PENDULUM = (
    *("--env", "Pendulum-v1", "--set", "evaluation.episodes=3", "--set", "net_arch=[16]"),
    *("--set", "batch_size=32", "--set", "buffer_size=5000"),
)
WORKERS = ("--set", "sampling.backend=workers", "--set", "sampling.num_workers=2")
LOCK_STEP = "sampling.force_sync=true"
LOG = "LOG"
"""Stands for a file of logged rows."""
CASES: dict[str, tuple[str, ...]] = {
    "linucb": ("--steps", "6000", "--set", "checkpoint.every=1000"),
    "lints": ("--steps", "4000", "--set", "checkpoint.every=700"),
    "neural-linucb": ("--steps", "3000", "--set", "checkpoint.every=500"),
    "ucb1": ("--steps", "8000", "--set", "checkpoint.every=1500"),
    "metric-ucb": ("--steps", "6000", "--set", "checkpoint.every=1000"),
    "thompson": ("--steps", "6000", "--set", "checkpoint.every=1000"),
    "epsilon-greedy": ("--steps", "8000", "--set", "checkpoint.every=1500"),
    "softmax": ("--steps", "8000", "--set", "checkpoint.every=1500"),
    "ppo": (*CARTPOLE, "--steps", "8192", "--set", "n_steps=128", "--set", "checkpoint.every=1024"),
    "a2c": (*CARTPOLE, "--steps", "6000", "--set", "checkpoint.every=1000"),
    "dqn": (*CARTPOLE, "--steps", "5000", "--set", "checkpoint.every=500"),
    "rainbow": (
        *(*CARTPOLE, "--steps", "2000", "--set", "checkpoint.every=250"),
        *("--set", "learning_starts=300", "--set", "num_envs=4"),
    ),
    "sac": (*PENDULUM, "--steps", "1500", "--set", "checkpoint.every=200"),
    "td3": (*PENDULUM, "--steps", "2000", "--set", "checkpoint.every=250"),
    "vdn": (
        *("--env", "examples.agent_tasks:TwoStep", "--steps", "3000"),
        *("--set", "mixing=qmix", "--set", "checkpoint.every=400"),
        *("--set", "learning_starts=100"),
    ),
    "bc": ("--data", LOG, "--steps", "60000", "--set", "checkpoint.every=7000"),
    "ppo+lock-step": (
        *(*CARTPOLE, *WORKERS, "--set", LOCK_STEP, "--steps", "4096", "--set", "n_steps=64"),
        *("--set", "num_envs=4", "--set", "checkpoint.every=512"),
    ),
    "ppo+agents": (
        *("--env", "examples.agent_tasks:Meeting", "--set", "evaluation.episodes=3"),
        *("--set", "modules.one.agents=agent_0", "--set", "modules.two.agents=agent_1"),
        *("--set", "num_envs=4", "--set", "n_steps=64", "--set", "batch_size=64"),
        *("--steps", "6144", "--set", "checkpoint.every=768"),
    ),
    "dqn+workers": (
        *(*CARTPOLE, *WORKERS, "--steps", "2400", "--set", "num_envs=4"),
        *("--set", "learning_starts=300", "--set", "checkpoint.every=400"),
    ),
}
"""Algorithm, and what is special after a `+` → arguments of a run of about a second.

To add an algorithm, add a line: the environment, steps, and steps between checkpoints, of which
there should be about eight.
"""

READY = 2
"""The status of a complete model in MLflow's database."""

LEAVING_SECONDS = 20.0
"""How long processes may take to notice that their parent is gone, on a busy machine."""

CODE_FINISHED = 2
"""The exit code of resuming a run that has finished."""


@attrs.frozen
class Reference:
    """What a run that is not killed ends with."""

    digest: str
    points: dict[tuple[str, int], float]
    is_exact: bool
    """Whether a second run gives the same numbers: not if workers are not waited for."""
    seconds: float
    seconds_printed: float
    """Until its id was printed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--short", action="store_true", help="runs of a quarter of the steps")
    parser.add_argument("--keep", type=Path, help="keep the folders of failed trials here")
    options = parser.parse_args()
    _refuse_missing_cases()
    names = options.cases.split(",")
    cases = {name: _shortened(CASES[name]) if options.short else CASES[name] for name in names}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rlplug.runs.run", "mlflow", "rlplug.cli.resume", "gymnasium"])
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        root = Path(folder)
        log = _write_log(root / "log.npz")
        cases = {
            name: tuple(log if part == LOG else part for part in case)
            for name, case in cases.items()
        }
        template = root / "empty"
        _finish(context, template, ("run", "--algo", "ucb1", "--steps", "10", "--quiet"))
        _forget_runs(template)
        references = {
            name: _reference(context, root, template, name, cases[name]) for name in names
        }
        for name, one in references.items():
            print(f"{name}: {one.seconds:.1f} s, {len(one.points)} points", flush=True)
        trials = Trials(context, root, template, references, cases, options)
        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(trials.one, range(10 * options.kills)))
        trials.report()
        return 1 if trials.failures else 0


def _write_log(file: Path) -> str:
    """Rows whose action is 1 where the first of four numbers is the largest."""
    contexts = numpy.random.default_rng(0).random((5_000, 4))
    numpy.savez(
        file, context=contexts, action=(contexts.argmax(1) == 0).astype(int), reward=contexts[:, 0]
    )
    return str(file)


def _refuse_missing_cases() -> None:
    installed = {one.name for one in Registry.installed().of_kind(ALGORITHM)}
    missing = installed - {_algorithm(name) for name in CASES}
    if missing:
        raise SystemExit(f"installed algorithms without a case in CASES: {', '.join(missing)}")


def _algorithm(name: str) -> str:
    return name.partition("+")[0]


class Trials:
    """Trials until enough kills were made."""

    def __init__(
        self,
        context: Any,
        root: Path,
        template: Path,
        references: dict[str, Reference],
        cases: dict[str, tuple[str, ...]],
        options: argparse.Namespace,
    ) -> None:
        self._context = context
        self._root = root
        self._template = template
        self._references = references
        self._cases = cases
        self._options = options
        self.kills = 0
        self.failures: list[str] = []
        self._counts: collections.Counter[str] = collections.Counter()

    def one(self, number: int) -> None:
        """One trial, unless there were enough."""
        if self.kills >= self._options.kills:
            return
        draw = random.Random(self._options.seed * 1_000_003 + number)
        name = sorted(self._references)[number % len(self._references)]
        home = self._root / f"trial-{number}"
        commands = draw.random() < 0.1
        try:
            if not (commands and draw.random() < 0.5):
                shutil.copytree(self._template, home)
            told = self._trial(name, home, draw, commands)
        except Exception:
            told = traceback.format_exc()
        if told:
            self.failures.append(f"trial {number}, {name}: {told}")
            print(self.failures[-1], flush=True)
            if self._options.keep:
                shutil.copytree(home, self._options.keep / home.name, dirs_exist_ok=True)
        shutil.rmtree(home, ignore_errors=True)

    def report(self) -> None:
        """Print what was done."""
        print(f"{self.kills} kills: {dict(self._counts)}; {len(self.failures)} failures")

    def _trial(self, name: str, home: Path, draw: random.Random, commands: bool) -> str:
        """What is wrong after kills and resumes; an empty string if nothing is."""
        reference = self._references[name]
        slower = 6.0 if commands else 0.3
        arguments = ("run", "--algo", _algorithm(name), *self._cases[name])
        memory: set[Path] = set()
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            start = _start_command if commands else self._start_fork
            process = start(home, arguments)
            longest = reference.seconds * 1.1 + slower
            if draw.random() < 0.8:
                # Most moments should fall into what comes after the start-up.
                _wait_until_printed(process)
                longest = (reference.seconds - reference.seconds_printed) * 1.1
            process.join(draw.uniform(0.0, longest))
            finished = process.exitcode is not None
            memory |= _shared_memory(process.pid)
            process.kill()
            process.join()
            self.kills += not finished
            self._counts[f"{arguments[0]}{'' if not finished else ', in time'}"] += 1
            run = _run_of(home)
            if run is None:
                self._counts["killed before it had an id"] += 1
                printed = _printed(process)
                if printed:
                    return f"the id {printed} was printed, but there is no such run"
                continue
            arguments = ("resume", "last")
        code, said = _finish(self._context, home, arguments)
        if code not in (0, CODE_FINISHED) or (code and "there is nothing to resume" not in said):
            return f"{' '.join(arguments)} exited with {code}: {said[-2000:]}"
        code, said = _finish(self._context, home, ("runs", "sync"))
        if code:
            return f"runs sync exited with {code}: {said[-2000:]}"
        return "; ".join(filter(None, (_difference(home, reference), _left(home, memory))))

    def _start_fork(self, home: Path, arguments: tuple[str, ...]) -> Forked:
        return Forked(self._context, home, arguments)


class Forked:
    """A command in a process that has everything imported."""

    def __init__(self, context: Any, home: Path, arguments: tuple[str, ...]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / f"said-{time.monotonic_ns()}.txt"
        self._process = context.Process(target=_carry_out, args=[home, arguments, self.log])
        self._process.start()
        # Starting a process asks all others how they ended; of two threads that ask, one is told
        # 255.
        _children.discard(self._process)

    def join(self, seconds: float | None = None) -> None:
        self._process.join(seconds)

    def kill(self) -> None:
        self._process.kill()

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def exitcode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code


class Command:
    """A command as a person types it."""

    def __init__(self, home: Path, arguments: tuple[str, ...]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / f"said-{time.monotonic_ns()}.txt"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rlplug", *arguments],
                env={**os.environ, "RLPLUG_HOME": str(home), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def join(self, seconds: float | None = None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()


_start_command = Command


def _printed(process: Forked | Command) -> str:
    """The beginning of the run's id, once the run has printed it."""
    found = re.search(r", run (\w+)\n", process.log.read_text()) if process.log.exists() else None
    return found[1] if found else ""


def _wait_until_printed(process: Forked | Command) -> None:
    """Wait for the id, or for the end of the process."""
    while process.exitcode is None and not _printed(process):
        process.join(0.02)


def _carry_out(home: Path, arguments: tuple[str, ...], log: Path) -> None:
    """In the forked process: what `rlplug ARGUMENTS` does."""
    os.environ["RLPLUG_HOME"] = str(home)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(home)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    import torch

    torch.set_num_threads(1)
    from rlplug.cli.main import main as rlplug

    rlplug(list(arguments))


def _finish(context: Any, home: Path, arguments: tuple[str, ...]) -> tuple[int, str]:
    """Carry out a command to its end; its exit code and what it said."""
    process = Forked(context, home, arguments)
    process.join()
    return process.exitcode or 0, process.log.read_text()


def _shortened(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The same with a quarter of the steps, and checkpoints four times as often."""
    short = list(arguments)
    for place, one in enumerate(arguments):
        option, _, value = one.rpartition("=")
        if option == "checkpoint.every":
            short[place] = f"{option}={int(value) // 4}"
        elif arguments[place - 1] == "--steps":
            short[place] = str(int(one) // 4)
    return tuple(short)


def _reference(
    context: Any, root: Path, template: Path, name: str, arguments: tuple[str, ...]
) -> Reference:
    home = root / f"reference-{name}"
    shutil.copytree(template, home)
    began = time.perf_counter()
    process = Forked(context, home, ("run", "--algo", _algorithm(name), *arguments))
    _wait_until_printed(process)
    seconds_printed = time.perf_counter() - began
    process.join()
    seconds = time.perf_counter() - began
    if process.exitcode:
        raise SystemExit(f"the reference run of {name} failed: {process.log.read_text()}")
    is_exact = LOCK_STEP in arguments or not set(WORKERS) <= set(arguments)
    return Reference(_digest(home), _points(home), is_exact, seconds, seconds_printed)


def _run_of(home: Path) -> Path | None:
    found = [one.parent for one in home.glob("work/*/run.json")]
    return found[0] if found else None


def _digest(home: Path) -> str:
    run = _run_of(home)
    assert run is not None
    last = max((run / "checkpoints").glob("step-*"))
    return str(json.loads((last / "manifest.json").read_bytes())["state_digest"])


def _points(home: Path) -> dict[tuple[str, int], float]:
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as database:
        rows = database.execute("select key, step, value, is_nan from metrics").fetchall()
    return {
        (key, step): float("nan") if nan else value
        for key, step, value, nan in rows
        if not key.startswith("time/")
    }


def _forget_runs(home: Path) -> None:
    """Leave the database only: an experiment keeps the folder of artifacts it was created with."""
    shutil.rmtree(home / "work")
    shutil.rmtree(home / "artifacts")
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as database:
        for table in ("metrics", "latest_metrics", "params", "tags", "inputs", "runs"):
            database.execute(f"delete from {table}")  # of the list above
        database.execute("delete from experiment_tags")
        database.execute("delete from experiments where experiment_id != 0")
        database.commit()


def _difference(home: Path, reference: Reference) -> str:
    """How a run differs from one that was not killed; an empty string if it does not."""
    problems = []
    run = _run_of(home)
    if run is None:
        return "there is no run"
    if reference.is_exact and _digest(home) != reference.digest:
        problems.append("the state at the end differs")
    found = _points(home)
    wrong = [key for key, value in reference.points.items() if str(found.get(key)) != str(value)]
    if reference.is_exact and wrong:
        key = wrong[0]
        problems.append(
            f"{len(wrong)} of {len(reference.points)} points differ, such as {key}: "
            f"{found.get(key)} instead of {reference.points[key]}"
        )
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as database:
        (twice,) = database.execute(
            "select count(*) from (select 1 from metrics group by run_uuid, key, step "
            "having count(*) > 1)"
        ).fetchone()
        statuses = dict(database.execute("select run_uuid, status from runs").fetchall())
    if twice:
        problems.append(f"{twice} points are there twice")
    # One that was killed before it was in MLflow has another id there.
    tracked = json.loads((run / "run.json").read_text())["tracked_id"]
    if statuses.pop(tracked, "missing") != "FINISHED":
        problems.append("the run is not FINISHED in MLflow")
    if "RUNNING" in statuses.values():
        problems.append("another run is left RUNNING")
    problems += _wrong_models(home, run)
    left = [
        str(one.relative_to(home))
        for pattern in (".unfinished*", "*.new-*", ".artifact.uploading*", "*.creating*", "*.tmp")
        for one in home.rglob(pattern)
    ]
    if left:
        problems.append(f"half-made files are left: {left[:5]}")
    return "; ".join(problems)


def _shared_memory(pid: int) -> set[Path]:
    """What a process shares with its workers under a name, which would outlast it."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        shared = [line for line in lines if "/dev/shm/psm_" in line]
        return {Path(line.split()[-1]) for line in shared if not line.endswith("(deleted)")}
    return set()


def _left(home: Path, memory: set[Path]) -> str:
    """What is left of worker processes and their memory after some seconds."""
    deadline = time.monotonic() + LEAVING_SECONDS
    while True:
        there = [str(one) for one in memory if one.exists()]
        alive = [
            one.parent.name for one in Path("/proc").glob("[0-9]*/environ") if _is_of(one, home)
        ]
        if not there and not alive:
            return ""
        if time.monotonic() > deadline:
            return f"shared memory {there} and processes {alive} are left"
        time.sleep(0.05)


def _is_of(environ: Path, home: Path) -> bool:
    with contextlib.suppress(OSError):
        return f"RLPLUG_HOME={home}".encode() in environ.read_bytes().split(b"\0")
    return False


def _wrong_models(home: Path, run: Path) -> list[str]:
    """How the models in MLflow differ from the checkpoints of the run."""
    manifests = {one.parent.name: one for one in run.glob("checkpoints/step-*/manifest.json")}
    evaluated = {
        name
        for name, one in manifests.items()
        if (facts := json.loads(one.read_bytes()))["evaluation"] and facts["finite"]
    }
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as database:
        models = database.execute(
            "select m.model_id, t.tag_value, m.status, "
            "(select count(*) from inputs i where i.destination_id = m.model_id), "
            "(select count(*) from logged_model_metrics s where s.model_id = m.model_id "
            "and s.metric_name = 'eval/return_mean') "
            "from logged_models m join logged_model_tags t on t.model_id = m.model_id "
            "and t.tag_key = 'rlplug.checkpoint' where m.lifecycle_stage = 'active'"
        ).fetchall()
    problems = []
    names = sorted(name for _, name, *_ in models)
    if names != sorted(evaluated):
        problems.append(f"models of {names}, but evaluated checkpoints {sorted(evaluated)}")
    wrong = [rest for rest in models if rest[2:] != (READY, 1, 1)]
    if wrong:
        problems.append(f"models with status, outputs and scores other than {READY, 1, 1}: {wrong}")
    files = [one for one in home.glob("artifacts/*/models/*/**/*") if one.is_file()]
    with_files = {one.relative_to(home).parts[3] for one in files}
    if with_files != {model for model, *_ in models}:
        problems.append(f"models {names}, but files of {len(with_files)} models")
    return problems


if __name__ == "__main__":
    sys.exit(main())
