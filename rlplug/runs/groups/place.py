"""Where the runs of a group are carried out: on this host, or on hosts of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.sections import ScaleSection
from rlplug.errors import RequestError, RlplugError
from rlplug.registry import Registry
from rlplug.runs.groups.carry_out import Launch
from rlplug.runs.groups.child import Event, LocalChild, Put
from rlplug.runs.groups.member import ERROR, REFUSED, Member
from rlplug.runs.prepare import Prepared
from rlplug.runs.rebuilding import installed_versions, refuse_other_versions, versions
from rlplug.scale.cluster import connected, why_gone
from rlplug.tracking.location import is_http, sqlite_file, tracking_uri
from rlplug.tracking.provenance import cores

__all__ = ["Host", "Place", "place_of", "placed_by"]

_WITHIN_A_RUN = ("runners", "envs_per_runner", "learners")
"""Options that spread each run by itself: then its learner is in a process of this host."""
_PASSED_ON = ("MLFLOW_", "RLPLUG_", "OMP_NUM_THREADS")
"""Environment variables that a run needs wherever it is."""
_POLL_SECONDS = 1.0
_KILLED = 137
"""The exit code of a process that was killed."""


@attrs.frozen(kw_only=True)
class Place:
    """How many runs are carried out at a time, and what starts one."""

    jobs: int
    threads: int
    """CPU threads of each."""
    launch: Launch
    name: str = ""
    """For people, where that is not this host."""

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return f"{self.jobs} at a time{self.name}, {threads} each"


def placed_by(prepared: Prepared) -> ScaleSection | None:
    """How each run as a whole is placed on a Ray cluster; None: it is not."""
    origins = (prepared.origins.get(f"scale.{name}", "default") for name in _WITHIN_A_RUN)
    section = prepared.config.scale
    return section if section.engine == "ray" and {*origins} == {"default"} else None


@contextlib.contextmanager
def place_of(
    prepared: Prepared, section: ScaleSection | None, count: int, jobs: int, root: Path
) -> Iterator[Place]:
    """A place for so many runs, `jobs` of them at a time; 0: as many as there is room for.

    On this host, each run has its part of the cores, or `compute.num_threads`.
    """
    if jobs < 0:
        raise RequestError(f"jobs must be at least 1, got {jobs}.", "try: leave it out")
    wanted, available = prepared.config.compute.num_threads, cores()
    if section is None:
        jobs = max(min(jobs or max(available // max(wanted, 1), 1), count), 1)
        threads = max(wanted or available // jobs, 1)
        environ = {**os.environ, **_threads(threads)}

        def launch(member: Member, put: Put) -> LocalChild:
            return LocalChild(member.name, member.order, put, environ)

        yield Place(jobs=jobs, threads=threads, launch=launch)
        return
    threads = wanted or max(int(section.runner_cpus), 1)
    with connected(section, whole_runs=True) as ray, _marked(root) as mark:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        hosts = {node["NodeManagerHostname"] for node in nodes}
        if hosts - {socket.gethostname()}:
            _refuse_local_store(prepared, root)
        room = sum(_room(node["Resources"], section) for node in nodes)
        passed = {name: os.environ[name] for name in os.environ if name.startswith(_PASSED_ON)}
        plugins = [used.found for used in (prepared.algorithm, *prepared.addons)]
        job = {
            "path": [] if section.address else sys.path,
            "folder": os.getcwd(),
            "mark": str(mark),
            "environ": {**passed, **_threads(threads), "RLPLUG_HOME": str(root)},
            "plugins": [(used.kind, f"{used.distribution}:{used.name}") for used in plugins],
            "versions": versions(prepared),
        }
        actor = ray.remote(
            num_cpus=section.runner_cpus,
            num_gpus=section.runner_gpus,
            resources=dict(section.runner_resources) or None,
            max_restarts=0,
            # Events are asked for while messages are sent.
            max_concurrency=4,
        )(Host)

        def launch_on_ray(member: Member, put: Put) -> RayChild:
            # In its own process, a run that was placed is not spread again.
            order = {**member.order, "placed": True}
            placed = actor.remote(member.name, {**job, "order": order})
            return RayChild(ray, placed, member.name, put)

        yield Place(
            jobs=max(min(jobs or room, count), 1),
            threads=threads,
            launch=launch_on_ray,
            name=f" on {len(hosts)} hosts" if len(hosts) > 1 else " on a Ray cluster",
        )


def _threads(threads: int) -> dict[str, str]:
    """The variable for so many threads; one that allows fewer is left as it is."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    fewer = given.isdecimal() and 0 < int(given) <= threads
    return {} if fewer else {"OMP_NUM_THREADS": str(threads)}


@contextlib.contextmanager
def _marked(root: Path) -> Iterator[Path]:
    """A file in the runs folder, by which a host knows whether it has the same."""
    mark = root / f".shared-{uuid.uuid4().hex}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise RequestError(
            f"the runs folder {root} is not writable: {error.strerror or error}.",
            "try: RLPLUG_HOME=/another/folder rlplug run",
        ) from error
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _refuse_local_store(prepared: Prepared, root: Path) -> None:
    """Refuse a file as the database of runs on several hosts, which would damage it."""
    section = prepared.config.tracking
    uri = tracking_uri(section.uri, root)
    if section.enabled and (sqlite_file(uri) is not None or not (is_http(uri) or "://" in uri)):
        raise RequestError(
            f"runs on other hosts of the Ray cluster cannot be recorded in {uri}.",
            "try: MLFLOW_TRACKING_URI=http://HOST:PORT, of an MLflow server that all hosts reach, "
            "or --set tracking.enabled=false",
        )


def _room(node: Mapping[str, float], section: ScaleSection) -> int:
    """How many runs fit on a node."""
    wanted = {"CPU": section.runner_cpus, "GPU": section.runner_gpus, **section.runner_resources}
    # Ray counts in ten thousandths.
    counts = [int(node.get(name, 0) / each + 1e-4) for name, each in wanted.items() if each]
    return min(counts, default=int(node.get("CPU", 1)))


class Host:
    """An actor on some host: starts the process of a run, and holds its events.

    `job` says what to run, and what must be the same here as where the run was started.
    """

    def __init__(self, name: str, job: Mapping[str, Any]) -> None:
        self._name = name
        self._job = job
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._process: LocalChild | None = None

    def start(self) -> str:
        """Start the process; why that is not possible, or nothing."""
        job, host = self._job, socket.gethostname()
        # On the machine of the command, what its process finds is found in the same place.
        sys.path.extend(folder for folder in job["path"] if folder not in sys.path)
        with contextlib.suppress(OSError):
            os.chdir(job["folder"])
        try:
            registry = Registry.installed()
            found = [registry.find(kind, name) for kind, name in job["plugins"]]
            refuse_other_versions(installed_versions(found), job["versions"])
        except RlplugError as error:
            return "\n  ".join([f"host {host}: {error.message}", *error.hints])
        if not Path(job["mark"]).exists():
            return (
                f"the runs folder {Path(job['mark']).parent} is not on host {host}, or not the "
                "same.\n  try: RLPLUG_HOME=/a/folder/that/all/hosts/share rlplug …"
            )
        environ = {**os.environ, **job["environ"]}
        self._process = LocalChild(self._name, job["order"], self._events.put, environ)
        return ""

    def events(self) -> list[dict[str, Any]]:
        """What the process has done since the last call; waits a moment for the first."""
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self._events.get(timeout=_POLL_SECONDS))
            while True:
                found.append(self._events.get_nowait())
        return [attrs.asdict(event) for event in found]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send the process a message."""
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
        """Send it a message; where it has no host yet, a signal ends it."""
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
                self._say(f"{ERROR}its host on the Ray cluster was lost ({reason}).")
        self._put(Event(self._name, "ended", code))
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)

    def _until_its_end(self) -> int:
        failure = self._ray.get(self._actor.start.remote())
        if failure:
            self._say(f"{ERROR}{failure}")
            return REFUSED
        self._began = True
        while True:
            for event in self._ray.get(self._actor.events.remote()):
                if event["kind"] == "ended":
                    return int(event["value"])
                self._put(Event(**event))

    def _say(self, text: str) -> None:
        for line in text.splitlines():
            self._put(Event(self._name, "line", line))
