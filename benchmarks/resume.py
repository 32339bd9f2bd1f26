"""What checkpoints and resuming cost: python benchmarks/resume.py [--only commit|replay|resume]

commit: a checkpoint of 100 MB against a plain write, fsync and SHA-256 of as many bytes, and how
long the training thread is held against a plain copy of the tensors. replay: what a buffer of
1,000,000 CartPole transitions adds to a checkpoint. resume: from the call of `rlplug.resume`, all
imports done, to the first new environment step, with MLflow in SQLite. What is compared is measured
in turns.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
from gymnasium import spaces
from torch import Tensor

import rlplug
from rlplug import AddOn
from rlplug.checkpoint.replay_files import ReplayFiles, restore_rows
from rlplug.config.sources import Setting
from rlplug.feeds import Experience, FeedSetting, OpenFeed, Replay
from rlplug.registry import Registry
from rlplug.runs.components import make_components
from rlplug.runs.kinds import setup_for
from rlplug.runs.periodic import PeriodicTasks
from rlplug.runs.prepare import prepare
from rlplug.runs.request import Request
from rlplug.runs.signals import Interrupts
from rlplug.tracking import open_tracking
from rlplug.tracking.console import Activities
from rlplug.trees import pack

ROUNDS = 15
OPTIONS = {
    "net_arch": [2_020, 2_020],
    "n_steps": 64,
    "evaluation.episodes": 0,
    "checkpoint.minutes": 0.0,
    "tracking.enabled": False,
}
"""PPO with weights of 33 MB, of which Adam keeps two moments each."""
ROWS, NEW = 1_000_000, 5_000


def main() -> None:
    """Measure all parts, or one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("commit", "replay", "resume"))
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder or Path(), prefix=".resume-") as folder:
        for name, part in (("commit", commit), ("replay", replay), ("resume", resume)):
            if given.only in (None, name):
                part(Path(folder).absolute() / name)


class FirstStep(AddOn):
    """Notes when the first update after the start was made."""

    at = 0.0

    def update_finished(self) -> None:
        if not FirstStep.at:
            FirstStep.at = time.perf_counter()

    def save_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing is kept."""


def resume(folder: Path) -> None:
    """Runs that are made a little longer, again and again."""
    os.environ["RLPLUG_HOME"] = str(folder)
    for algorithm, env, options in (
        ("linucb", "", {}),
        ("ppo", "CartPole-v1", {"n_steps": 64}),
        ("dqn", "CartPole-v1", {"learning_starts": 1000}),
    ):
        settings = {"evaluation.episodes": 0, **options}
        steps = 50_000
        run = rlplug.run(algorithm, env, steps=steps, options=settings, addons=[FirstStep()])
        seconds = []
        for _ in range(5):
            steps += 2_000
            FirstStep.at, began = 0.0, time.perf_counter()
            rlplug.resume(run.run_id, steps=steps, addons=[FirstStep()])
            seconds.append(FirstStep.at - began)
        print(f"resume {algorithm}: {statistics.median(seconds):.2f} s to the first new update")


def commit(folder: Path) -> None:
    """A checkpoint of 100 MB, of a learner that was trained."""
    flags = {"run": {"algorithm": "ppo", "env": "CartPole-v1", "steps": 64}}
    settings = tuple(Setting(key, value) for key, value in OPTIONS.items())
    prepared = prepare(Request(flags=flags, settings=settings), Registry.installed(), {})
    with ExitStack() as stack, Interrupts() as interrupts:
        components = make_components(setup_for(prepared, "CartPole-v1"), interrupts, stack)
        tracking = stack.enter_context(
            open_tracking(prepared.config, environment="CartPole-v1", root=folder)
        )
        periodic = PeriodicTasks(
            prepared.config, components, tracking, Activities(), interrupts.check
        )
        components.trainer.periodic = periodic
        components.sampler.start()
        components.trainer.run()
        tensors: dict[str, Tensor] = {}
        pack(components.learner.get_state(), tensors)
        size = sum(tensor.nbytes for tensor in tensors.values())
        content = numpy.random.default_rng(0).bytes(size)
        step = iter(range(1_000, 10**9))

        def held() -> float:
            now = next(step)
            # What `reached` does first, whether there is a checkpoint to be saved or not.
            periodic.divergence.finite_at(now)
            began = time.perf_counter()
            periodic._save(now, {})
            return time.perf_counter() - began

        def committed() -> float:
            began = time.perf_counter()
            held()
            periodic.settle()
            return time.perf_counter() - began

        def copied() -> float:
            began = time.perf_counter()
            kept = [tensor.clone() for tensor in tensors.values()]
            seconds = time.perf_counter() - began
            del kept
            return seconds

        def plain() -> float:
            began = time.perf_counter()
            with (folder / "plain").open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            hashlib.sha256(content).hexdigest()
            return time.perf_counter() - began

        def alone(part: Callable[[], float]) -> float:
            periodic.settle()
            return part()

        parts = {"plain": plain, "committed": committed, "copied": copied, "held": held}
        times: dict[str, list[float]] = {name: [] for name in parts}
        for number in range(ROUNDS + 1):
            for name, part in parts.items():
                seconds = alone(part)
                if number:
                    times[name].append(seconds)
        periodic.settle()
        periodic.close()
    print(f"commit: a checkpoint of {size / 1e6:.0f} MB, medians of {ROUNDS}")
    middle = {name: statistics.median(found) for name, found in times.items()}
    show("plain write, fsync and SHA-256", middle["plain"], middle["plain"])
    show("committed", middle["committed"], middle["plain"])
    show("plain copy of the tensors", middle["copied"], middle["copied"])
    show("training thread held", middle["held"], middle["copied"])


def replay(folder: Path) -> None:
    """A full buffer, saved for the first time and then with some thousands of new rows."""
    for prioritized in (False, True):
        described = Replay(buffer_size=ROWS, learning_starts=ROWS - 1, prioritized=prioritized)
        feed = described.open(setting())
        files = ReplayFiles(folder / f"prioritized-{prioritized}")
        folder.mkdir(exist_ok=True)
        fill(feed, ROWS)
        first = save(files, feed)
        again = []
        for _ in range(ROUNDS):
            fill(feed, NEW)
            again.append(save(files, feed))
        held, whole = (statistics.median(column) for column in zip(*again, strict=True))
        size = sum(one.stat().st_size for one in files.folder.glob("rows-*"))
        print(
            f"replay: {ROWS:,} CartPole transitions, prioritized={prioritized}; {size / 1e6:.0f} MB"
        )
        print(f"  first save          {first[1] * 1e3:8.1f} ms, {first[0] * 1e3:.1f} ms held")
        print(f"  with {NEW:,} new    {whole * 1e3:8.1f} ms, {held * 1e3:.1f} ms held")
        began = time.perf_counter()
        restore_rows(files.folder, latest[0], described.open(setting()))
        print(f"  restored            {(time.perf_counter() - began) * 1e3:8.1f} ms")


latest: list[Any] = [{}]


def save(files: ReplayFiles, feed: OpenFeed) -> tuple[float, float]:
    """Seconds that the training thread was held, and until all was on the disk."""
    began = time.perf_counter()
    copy = files.copy(feed)
    held = time.perf_counter() - began
    assert copy is not None
    written = files.write(copy)
    files.known = written
    latest[0] = written.files
    return held, time.perf_counter() - began


def setting() -> FeedSetting:
    """One CartPole."""
    return FeedSetting(
        observation_space=spaces.Box(-numpy.inf, numpy.inf, (4,), numpy.float32),
        action_space=spaces.Discrete(2),
        num_envs=1,
        steps=10 * ROWS,
        seed=0,
    )


def fill(feed: OpenFeed, rows: int, chunk: int = 1_000) -> None:
    """Episodes of 200 steps."""
    random = numpy.random.default_rng(rows)
    for _ in range(0, rows, chunk):
        seen = random.random((chunk, 4), numpy.float32)
        columns = {
            "observations": seen,
            "actions": random.integers(2, size=chunk),
            "rewards": numpy.ones(chunk),
            "terminated": numpy.arange(chunk) % 200 == 199,
            "truncated": numpy.zeros(chunk, bool),
        }
        one = Experience(columns, steps=chunk, num_envs=1, following={"observations": seen[:1]})
        for _ in feed.take(one, 0):
            pass


def show(what: str, seconds: float, against: float) -> None:
    """One line of a table."""
    print(f"  {what:<34}{seconds * 1e3:>8.1f} ms{seconds / against:>7.2f} ×")


if __name__ == "__main__":
    main()
