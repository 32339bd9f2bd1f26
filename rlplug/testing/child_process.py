"""The plugin in a child process: side effects of its import, and the weights it learns there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any

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
    }
    # Another hash seed than here: what depends on the order of sets differs.
    environ = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "rlplug.testing.child_process"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    if done.returncode:
        raise PluginError(
            f"{subject.label} could not be rebuilt in another process:",
            *done.stderr.strip().splitlines()[-3:],
        )
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "missing" in report:
        raise DoesNotApply(f"another process cannot import {report['missing']!r} by its name")
    return report


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
    sys.stdout.write(json.dumps(_report(json.loads(sys.stdin.read()))) + "\n")
