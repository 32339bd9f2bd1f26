"""The plugin in a process of its own: how its import behaves, and what it builds there."""

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
from rlplug.testing.bench import bench_of
from rlplug.testing.comparing import digest
from rlplug.testing.draws import moved_generators
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject

__all__ = ["fingerprint", "report_of"]

UPDATES = 5


def report_of(subject: Subject) -> Mapping[str, Any]:
    """What a spawned process says about the plugin; asked once per subject."""
    known: dict[str, Any] = subject.__dict__.setdefault("_child", {})
    if not known:
        known.update(_ask(subject))
    return known


def fingerprint(subject: Subject) -> str:
    """A digest of what is left after a few updates: the same in every process."""
    bench = bench_of(subject, seed=3)
    bench.live(UPDATES)
    return digest(bench.weights())


def _ask(subject: Subject) -> dict[str, Any]:
    module, _, name = subject.found.target.partition(":")
    if "<locals>" in name or module in ("__main__", "builtins"):
        raise DoesNotApply("its class is defined where no other process can import it")
    if subject.environment is not None:
        raise DoesNotApply("its own environment cannot be handed to another process")
    question = {
        "found": {
            part: getattr(subject.found, part)
            for part in ("kind", "name", "target", "distribution", "version")
        },
        "options": plain(subject.options),
    }
    # Hashes of texts differ in each process unless they are fixed: an order of sets shows here.
    environ = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "rlplug.testing.child"],
        input=json.dumps(question),
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
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "missing" in answer:
        raise DoesNotApply(f"another process cannot import {answer['missing']!r} by its name")
    return answer


def _answer(question: Mapping[str, Any]) -> dict[str, Any]:
    found = FoundPlugin(**question["found"])
    before = set(threading.enumerate())
    home = found.target.partition(":")[0]
    try:
        with moved_generators() as moved:
            printed = _import(home)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{home}.".startswith(f"{error.name}."):
            raise
        return {"missing": home}
    threads = [one.name for one in threading.enumerate() if one not in before]
    kind = Registry((found,)).load(found)
    subject = Subject(found=found, kind=kind, options=question["options"])
    _, problems = structure(kind.Config, question["options"], found.name)
    if problems:
        raise PluginError(f"options are not the same here: {problems}")
    return {
        "printed": printed,
        "threads": threads,
        "generators": moved,
        "fingerprint": fingerprint(subject),
    }


def _import(module: str) -> str:
    """Import the plugin's module; what file descriptors 1 and 2 were given meanwhile."""
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
    sys.stdout.write(json.dumps(_answer(json.loads(sys.stdin.read()))) + "\n")
