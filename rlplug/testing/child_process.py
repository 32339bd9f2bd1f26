"""The plugin in a child process: side effects of its import, and the weights it learns there."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from importlib import import_module, invalidate_caches
from typing import IO, Any

from rlplug.config.strict import structure
from rlplug.config.toml import plain
from rlplug.errors import PluginError
from rlplug.registry import FoundPlugin, Registry
from rlplug.testing.comparison import digest
from rlplug.testing.harness import changed_generators, make_harness
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject

__all__ = ["run_in_child_process", "weights_digest"]

UPDATES = 5


def run_in_child_process(subject: Subject) -> Mapping[str, Any]:
    """What a child process reports of the plugin; run once per subject."""
    report: dict[str, Any] = subject.__dict__.setdefault("_child_report", {})
    if not report:
        report.update(_run(subject))
    return report


def weights_digest(subject: Subject) -> str:
    """A hash of the weights after a few updates."""
    harness = make_harness(subject, seed=3)
    harness.train(UPDATES)
    return digest(harness.weights())


def _run(subject: Subject) -> dict[str, Any]:
    module, _, name = subject.found.target.partition(":")
    if "<locals>" in name or module in ("__main__", "builtins"):
        raise DoesNotApply("its class is defined where no other process can import it")
    if subject.environment is not None:
        raise DoesNotApply("its own environment cannot be handed to another process")
    request = {
        "found": {
            part: getattr(subject.found, part)
            for part in ("kind", "name", "target", "distribution", "version")
        },
        "options": plain(subject.options),
        "seed": subject.seed,
        "folder": os.getcwd(),
        "path": sys.path,
        "environ": dict(os.environ),
    }
    report = _answer(request)
    if "failed" in report:
        raise PluginError(
            f"{subject.label} could not be rebuilt in another process:", *report["failed"]
        )
    if "missing" in report:
        raise DoesNotApply(f"another process cannot import {report['missing']!r} by its name")
    return report


class _Server:
    """A process that has imported what every plugin needs, and forks one for each request.

    Where forking is not safe, it answers a single request itself.
    """

    forks = sys.platform == "linux"
    running: _Server | None = None

    def __init__(self) -> None:
        # Another hash seed than here: what depends on the order of sets differs.
        environ = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rlplug.testing.child_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            start_new_session=True,
        )

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The report that a new process gives."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PluginError("another process could not be started, or was killed.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End it, and what it forked."""
        if self.forks:
            # It is the leader of its own group.
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.communicate()


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the server, which is started for the first request."""
    if _Server.running is None:
        _Server.running = _Server()
    try:
        answer = _Server.running.answer(request)
    except BaseException:
        _end_server()
        raise
    if not _Server.forks:
        _end_server()
    return answer


@atexit.register
def _end_server() -> None:
    if _Server.running is not None:
        _Server.running.end()
        _Server.running = None


def _serve() -> None:
    """Answer the requests that come from standard input."""
    replies = os.fdopen(os.dup(1), "w")
    # What plugins print does not belong to the replies.
    os.dup2(2, 1)
    if _Server.forks:
        # The first optimizer imports it, which takes seconds.
        import_module("torch._dynamo")
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as file:
            _reply(json.loads(line), file)
            file.seek(0)
            replies.write(file.read() + "\n")
            replies.flush()


def _reply(request: Mapping[str, Any], file: IO[str]) -> None:
    """Write what a new process reports, in one line."""
    if not _Server.forks:
        file.write(json.dumps(_outcome(request)))
    elif forked := os.fork():
        _, status = os.waitpid(forked, 0)
        if status:
            code = os.waitstatus_to_exitcode(status)
            file.seek(0)
            file.truncate()
            file.write(json.dumps({"failed": [f"it ended with exit code {code}"]}))
    else:
        code = 1
        try:
            file.write(json.dumps(_outcome(request)))
            file.flush()
            code = 0
        finally:
            os._exit(code)


def _outcome(request: Mapping[str, Any]) -> dict[str, Any]:
    """The report, or the last lines of what was raised."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.path[:] = request["path"]
    invalidate_caches()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    try:
        return _report(request)
    except BaseException:
        return {"failed": traceback.format_exc().strip().splitlines()[-3:]}


def _report(request: Mapping[str, Any]) -> dict[str, Any]:
    found = FoundPlugin(**request["found"])
    before = set(threading.enumerate())
    home = found.target.partition(":")[0]
    try:
        with changed_generators() as changed:
            printed = _import(home)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{home}.".startswith(f"{error.name}."):
            raise
        return {"missing": home}
    threads = [one.name for one in threading.enumerate() if one not in before]
    kind = Registry((found,)).load(found)
    subject = Subject(found=found, kind=kind, options=request["options"], seed=request["seed"])
    _, problems = structure(kind.Config, request["options"], found.name)
    if problems:
        raise PluginError(f"options are not the same here: {problems}")
    return {
        "printed": printed,
        "threads": threads,
        "generators": changed,
        "digest": weights_digest(subject),
    }


def _import(module: str) -> str:
    """Import a module; returns what it wrote to file descriptors 1 and 2."""
    with tempfile.TemporaryFile() as file:
        kept = [os.dup(number) for number in (1, 2)]
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            import_module(module)
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)
        file.seek(0)
        return file.read().decode(errors="replace").strip()


if __name__ == "__main__":
    _serve()
