"""Bugs that are planted in copies of the tree, and the processes that run tests there."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from mutants_core_rules import Bug

ROOT = Path(__file__).parent.parent
TESTS = ("tests", "plugins")
NOT_RUN = tuple(
    f"--ignore-glob=*/{name}" for name in ("test_house.py", "test_readme.py", "test_examples.py")
)
"""Tests of the text or of whole runs in other processes: they notice too little for their time."""
GRACE = 30.0
"""Seconds to import and collect, beyond twice the time that the tests took."""
_OWN = {
    "bandits": ("bandit", "log_prob"),
    "cli": ("cli", "compare", "completion", "console", "diff", "promote", "show"),
    "envs": ("envs", "tensor_environments", "agents", "sampling_workers", "run_workers"),
    "evaluation": ("evaluation", "later_evaluations", "agents"),
    "hooks": ("hook", "docs_pages"),
    "config": ("config", "docs_pages"),
    "logs": ("log",),
    "nn": ("nn", "distributions"),
    "plugin": ("plugin", "hooks", "sampling_acting"),
    "runs": (
        *("run", "ablate", "checkpoint", "endings", "profiler", "provenance", "resume", "seeds"),
        *("sync", "tune", "models"),
    ),
    "sampling": ("sampling", "agents", "league", "logged_runs", "off_policy", "tensor_sampling"),
    "scale": ("scale", "agents_scale", "seeds_ray"),
    "serving": ("serve", "serving", "models", "export"),
    "tracking": ("tracking", "ui"),
    "trainer": ("trainer", "checkpoint_finite", "limits"),
}
"""How the test files of a room are named, if not after the room."""


def own_tests(room: str) -> tuple[str, ...]:
    """How the names of a room's own tests begin."""
    names = _OWN.get(room, (room,))
    # The tests of plugins run the conformance kit.
    kit = ("plugins/",) if room == "testing" else ()
    return (*(f"tests/test_{name}" for name in names), f"tests/{room}/", *kit)


@attrs.frozen
class Outcome:
    """What came of a bug: noticed, survived, or accepted without being tried."""

    bug: Bug
    result: str
    why: str = ""
    by_own: bool = False
    too_slow: bool = False
    """Noticed only in that the tests took far longer, as on a busy machine they may anyway."""


def import_heavy() -> None:
    """Import what tests need beside rlplug: processes that are forked have it already."""
    for name in ("gymnasium", "mlflow", "torch"):
        importlib.import_module(name)
    assert "rlplug" not in sys.modules


def copy_of_tree(folder: Path) -> Path:
    """A copy of all files that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


class Trial:
    """One bug in a copy of the tree, and a process that runs the tests there."""

    def __init__(self, bug: Bug, tree: Path, tests: list[str], seconds: float, known: int) -> None:
        self.bug, self.tree, self.tests, self.known = bug, tree, tests, known
        self.path = tree / bug.file
        self.source = self.path.read_bytes()
        self.path.write_bytes(bug.planted(self.source))
        self.report = tree / "first_failure.txt"
        self.report.unlink(missing_ok=True)
        self.too_slow = False
        self.deadline = time.monotonic() + 2 * seconds + GRACE
        self.process = multiprocessing.get_context("fork").Process(
            target=run_tests, args=(tree, tests, self.report)
        )
        self.process.start()

    def over(self) -> bool:
        """Whether the tests have ended, or took far longer than without the bug."""
        if self.process.is_alive():
            if time.monotonic() < self.deadline:
                return False
            self.too_slow = True
            self.stop()
        self.process.join()
        self.path.write_bytes(self.source)
        return True

    def stop(self) -> None:
        """End the process and those that its tests started: they are a group of their own."""
        assert self.process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()

    def outcome(self) -> Outcome:
        """Without a bug all of them pass: any other end means that it was noticed."""
        first = self.report.read_text() if self.report.exists() else ""
        if self.process.exitcode == 0:
            return Outcome(self.bug, "survived", f"{len(self.tests)} of {self.known} tests passed")
        by_own = first.startswith(own_tests(self.bug.room))
        return Outcome(self.bug, "noticed", first, by_own, self.too_slow)


def in_child(target: Callable[..., None], *arguments: Any) -> int | None:
    """Call a function in a process of its own; returns its exit code."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def run_tests(tree: Path, tests: list[str], report: Path) -> None:
    """In a child: run tests until the first failure, which is written down."""
    run_pytest(tree, ["-x", f"--basetemp={tree}/.tmp", *tests], FirstFailure(report))


def collect(tree: Path, report: Path) -> None:
    """In a child: write down the names of all tests."""
    run_pytest(tree, ["--collect-only", *TESTS, *NOT_RUN], Collected(report))


def run_pytest(tree: Path, options: list[str], plugin: object) -> None:
    """Run pytest on a copy of the tree, without a word, and exit with its code."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.chdir(tree)
    plugins = [str(path) for path in sorted((tree / "plugins").glob("*"))]
    sys.path[:0] = [str(tree), *plugins]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tree), *plugins])
    # Compiled files of two bugs of one second and size would be taken for each other.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    common = ["-n", "0", "-q", "-p", "no:cacheprovider", "-m", ""]
    # Plugins of pytest that came with the imports before the fork.
    common += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    os._exit(int(pytest.main([*common, *options], plugins=[plugin])))


class Collected:
    """A pytest plugin: writes down the names of tests."""

    def __init__(self, report: Path) -> None:
        self._report = report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._report.write_text("\n".join(item.nodeid for item in session.items))


class FirstFailure:
    """A pytest plugin: writes down the test that failed."""

    def __init__(self, report: Path) -> None:
        self._report = report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._report.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._report.write_text(report.nodeid)
