"""A run in a process of its own: its order, how it is started, listened to, and ended.

The process reads JSON lines on its standard input, first the order and then signals and answers,
and reports in JSON lines on its standard output. Its input closes when this process has gone,
however it went: nothing depends on process groups, fork or POSIX signals, and nothing is pickled,
so that an order can go to any host.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, Literal, Protocol, TypeAlias

import attrs

from rlplug.config.sections import ScaleSection
from rlplug.config.sources import Setting
from rlplug.config.toml import as_mapping
from rlplug.runs.prepare import Prepared
from rlplug.runs.rebuilding import prepared_of

__all__ = ["Child", "Event", "LocalChild", "Put", "prepared_from", "resume_order", "run_order"]

MODULE = "rlplug.cli.child"
"""What the process executes; a name, as the command line is above this layer."""

ERRORS_SECONDS = 2.0
"""How long the output of a process that has ended is read: one of its own may hold it open."""


def run_order(prepared: Prepared, **more: Any) -> dict[str, Any]:
    """To carry out a run.

    `more` may have `resume_existing`, whether to go on with the run of its name if there is one,
    the `trial` that the run is, and whether it `asks` after each evaluation if it is to go on.
    """
    options = {"origins": dict(prepared.origins), "defaults": dict(prepared.defaults)}
    config = as_mapping(prepared.config)
    return {"kind": "run", "config": config, "argv": sys.argv, **options, **more}


def resume_order(
    run_id: str,
    *,
    steps: int = 0,
    settings: Iterable[Setting] = (),
    allow_drift: bool = False,
    trust: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """To go on with a run; `more` as for one that starts."""
    pairs = [(setting.key, setting.value) for setting in settings]
    how = {"steps": steps, "settings": pairs, "allow_drift": allow_drift, "trust": trust}
    return {"kind": "resume", "run": run_id, "argv": sys.argv, **how, **more}


def prepared_from(order: Mapping[str, Any]) -> Prepared:
    """The run of an order, with the plugins that are installed here."""
    prepared = prepared_of(order["config"], "its group")
    if order.get("placed"):
        # What was placed on a cluster as a whole is not spread again.
        config = attrs.evolve(prepared.config, scale=ScaleSection())
        prepared = attrs.evolve(prepared, config=config)
    prepared = prepared.with_options(run={"preset": order["config"]["run"]["preset"]})
    return attrs.evolve(prepared, origins=order["origins"], defaults=order["defaults"])


@attrs.frozen
class Event:
    """Something that a child did."""

    name: str
    """The child's."""
    kind: Literal["report", "line", "ended"]
    value: Any
    """A mapping, a line that it printed, or its exit code."""


Put: TypeAlias = Callable[[Event], None]


class Child(Protocol):
    """A run in another process, here or on another host."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell it something: a signal to act on, or the answer to a question."""

    def kill(self) -> None:
        """End it without a checkpoint."""


class LocalChild:
    """A child on this host; its events are put from other threads."""

    def __init__(
        self,
        name: str,
        order: Mapping[str, Any],
        put: Put,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._name = name
        self._put = put
        # -P: the path of this process is sent with the order.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            # Ctrl-C reaches this process alone, which tells the others.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self.send({**order, "path": sys.path})
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()
        threading.Thread(target=self._read_reports, daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a line to its standard input."""
        # It may have ended.
        with contextlib.suppress(OSError):
            stdin = self._process.stdin
            assert stdin is not None
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()

    def kill(self) -> None:
        """End it without a checkpoint."""
        self._process.kill()

    def _read_reports(self) -> None:
        for line in _lines(self._process.stdout):
            self._put(Event(self._name, "report", json.loads(line)))
        code = self._process.wait()
        self._errors.join(ERRORS_SECONDS)
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._put(Event(self._name, "ended", code))

    def _read_errors(self) -> None:
        for line in _lines(self._process.stderr):
            self._put(Event(self._name, "line", line))


def _lines(stream: IO[bytes] | None) -> Iterator[str]:
    assert stream is not None
    with stream:
        for line in stream:
            yield line.decode(errors="replace").rstrip("\r\n")
