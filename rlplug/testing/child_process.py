"""The plugin in a child process: side effects of its import, and the weights it learns there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from typing import Any

from rlplug.config.toml import plain
from rlplug.errors import PluginError
from rlplug.registry import FoundPlugin, Registry
from rlplug.testing.comparison import digest
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, changed_generators

_PARTS = ("kind", "name", "target", "distribution", "version")


def run_in_child_process(subject: Subject) -> Mapping[str, Any]:
    """What a child process reports of the plugin; run once per subject."""
    report: dict[str, Any] = subject.__dict__.setdefault("_child_report", {})
    if not report:
        report.update(_run(subject))
    return report


def weights_digest(subject: Subject) -> str:
    """A hash of the weights after a few updates."""
    return digest(Trial(subject, seed=3, updates=5).weights())


def _run(subject: Subject) -> dict[str, Any]:
    module, _, name = subject.found.target.partition(":")
    if "<locals>" in name or module in ("__main__", "builtins"):
        raise DoesNotApply("its class is defined where no other process can import it")
    if subject.environment is not None:
        raise DoesNotApply("its own environment cannot be handed to another process")
    request = {
        "found": {part: getattr(subject.found, part) for part in _PARTS},
        "options": plain(subject.options),
        "seed": subject.seed,
        "path": sys.path,
    }
    # Another hash seed than here: what depends on the order of sets differs.
    environ = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        command = [sys.executable, "-m", "rlplug.testing.child_process", answer.name]
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, env=environ
        )
        ended = f"it ended with exit code {done.returncode}: {done.stderr[-300:]}"
        report: dict[str, Any] = json.loads(answer.read() or json.dumps({"failed": [ended]}))
    if "failed" in report:
        raise PluginError(
            f"{subject.found.label} could not be rebuilt in another process:", *report["failed"]
        )
    if "missing" in report:
        raise DoesNotApply(f"another process cannot import {report['missing']!r} by its name")
    return report


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What this process, which has not imported the plugin, finds; or what was raised."""
    sys.path[:] = request["path"]
    found = FoundPlugin(**request["found"])
    home = found.target.partition(":")[0]
    before = set(threading.enumerate())
    try:
        with changed_generators() as changed, redirect_stdout(StringIO()) as printed:
            import_module(home)
        threads = [one.name for one in threading.enumerate() if one not in before]
        kind = Registry((found,)).load(found)
        subject = Subject(found=found, kind=kind, options=request["options"], seed=request["seed"])
        report = {"printed": printed.getvalue().strip(), "threads": threads, "generators": changed}
        return {**report, "digest": weights_digest(subject)}
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{home}.".startswith(f"{missing}."):
            return {"missing": home}
        return {"failed": traceback.format_exc().strip().splitlines()[-3:]}


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(_answer(json.load(sys.stdin)), file)
