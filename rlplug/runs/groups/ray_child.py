"""A child on a host of a Ray cluster, where an actor starts its process and listens to it."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.errors import RlplugError
from rlplug.registry import Registry
from rlplug.runs.groups.child import Event, LocalChild, Put
from rlplug.runs.rebuilding import installed_versions, refuse_other_versions
from rlplug.scale.cluster import why_gone

__all__ = ["Host", "RayChild"]

_POLL_SECONDS = 1.0

_KILLED = 137
"""The exit code of a process that was killed."""


class Host:
    """On a host: starts the process of a run, and holds what it does until it is asked for.

    `job` says what to run, and what must be the same here as where the run was started.
    """

    def __init__(self, name: str, job: Mapping[str, Any]) -> None:
        self._name = name
        self._job = job
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._process: LocalChild | None = None

    def start(self) -> tuple[str, str]:
        """Start it; the name of the host, and why that is not possible, or nothing."""
        job, host = self._job, socket.gethostname()
        # On the machine of the command, what its process finds is found in the same place.
        sys.path.extend(one for one in job["path"] if one not in sys.path)
        with contextlib.suppress(OSError):
            os.chdir(job["folder"])
        try:
            registry = Registry.installed()
            found = [registry.find(kind, name) for kind, name in job["plugins"]]
            refuse_other_versions(installed_versions(found), job["versions"])
        except RlplugError as error:
            return host, "\n  ".join([f"host {host}: {error.message}", *error.hints])
        root, content = Path(job["root"]), job["content"]
        if not _has(root / job["token"], content):
            return host, (
                f"the runs folder {root} of the host that started the run is not on host {host}.\n"
                "  try: RLPLUG_HOME=/a/folder/that/all/hosts/share rlplug …"
            )
        environ = {**os.environ, **job["environ"]}
        self._process = LocalChild(self._name, job["order"], self._events.put, environ)
        return host, ""

    def events(self) -> list[dict[str, Any]]:
        """What the process has done since the last call; waits a moment for the first."""
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self._events.get(timeout=_POLL_SECONDS))
            while True:
                found.append(self._events.get_nowait())
        return [attrs.asdict(one) for one in found]

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell the process something."""
        if self._process is not None:
            self._process.send(message)

    def kill(self) -> None:
        """End the process without a checkpoint."""
        if self._process is not None:
            self._process.kill()


class RayChild:
    """A child that an actor starts on some host."""

    def __init__(self, ray: Any, actor: Any, name: str, put: Put) -> None:
        self._ray = ray
        self._actor = actor
        self._name = name
        self._put = put
        self._began = False
        self._ended_by = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell it something; where it has no host yet, a signal ends it."""
        if self._began:
            self._actor.send.remote(message)
        elif "signal" in message:
            self._ended_by = int(message["signal"])
            self._ray.kill(self._actor)

    def kill(self) -> None:
        """End it without a checkpoint."""
        self._actor.kill.remote()

    def _listen(self) -> None:
        try:
            code = self._until_its_end()
        except self._ray.exceptions.RayError as error:
            code = 128 + self._ended_by if self._ended_by else _KILLED
            if not self._ended_by:
                reason = why_gone(self._ray, error)
                self._say(f"rlplug: error: its host on the Ray cluster was lost ({reason}).")
        self._put(Event(self._name, "ended", code))
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)

    def _until_its_end(self) -> int:
        _, failure = self._ray.get(self._actor.start.remote())
        if failure:
            for line in f"rlplug: error: {failure}".splitlines():
                self._say(line)
            return 2
        self._began = True
        while True:
            for one in self._ray.get(self._actor.events.remote()):
                if one["kind"] == "ended":
                    return int(one["value"])
                self._put(Event(**one))

    def _say(self, line: str) -> None:
        self._put(Event(self._name, "line", line))


def _has(file: Path, content: str) -> bool:
    try:
        return file.read_text() == content
    except OSError:
        return False
