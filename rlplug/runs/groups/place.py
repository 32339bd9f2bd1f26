"""Where the runs of a group are carried out: on this host, or on hosts of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.sections import ScaleSection
from rlplug.errors import RequestError
from rlplug.runs.groups.carry_out import Launch
from rlplug.runs.groups.child import LocalChild, Put
from rlplug.runs.groups.member import Member
from rlplug.runs.groups.ray_child import Host, RayChild
from rlplug.runs.prepare import Prepared
from rlplug.runs.rebuilding import versions
from rlplug.scale.cluster import connected
from rlplug.tracking.location import is_http, sqlite_file, tracking_uri
from rlplug.tracking.provenance import cores

__all__ = ["Place", "place_of", "placed_by"]

_WITHIN_A_RUN = ("runners", "envs_per_runner", "learners")
"""Options that spread each run by itself: then its learner is in a process of this host."""

_PASSED_ON = ("MLFLOW_", "RLPLUG_", "OMP_NUM_THREADS")
"""Environment variables that a run needs wherever it is."""


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
    options = [f"scale.{name}" for name in _WITHIN_A_RUN]
    are_set = any(prepared.origins.get(option, "default") != "default" for option in options)
    section = prepared.config.scale
    return None if section.engine != "ray" or are_set else section


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
        environ = _environ(threads)

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
        job = _job(prepared, section.address, root, mark, threads)
        yield Place(
            jobs=max(min(jobs or room, count), 1),
            threads=threads,
            launch=_ray_launch(ray, section, job),
            name=f" on {len(hosts)} hosts" if len(hosts) > 1 else " on a Ray cluster",
        )


def _environ(threads: int) -> dict[str, str]:
    """Environment variables of a process; one that allows fewer threads is left as it is."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    fewer = given.isdecimal() and 0 < int(given) <= threads
    return {**os.environ, **({} if fewer else {"OMP_NUM_THREADS": str(threads)})}


def _ray_launch(ray: Any, section: ScaleSection, job: Mapping[str, Any]) -> Launch:
    host = ray.remote(
        num_cpus=section.runner_cpus,
        num_gpus=section.runner_gpus,
        resources=dict(section.runner_resources) or None,
        max_restarts=0,
        # Events are asked for while messages are sent.
        max_concurrency=4,
    )(Host)

    def launch(member: Member, put: Put) -> RayChild:
        # In its own process, a run that was placed is not spread again.
        order = {**member.order, "placed": True}
        actor = host.remote(member.name, {**job, "order": order})
        return RayChild(ray, actor, member.name, put)

    return launch


def _job(prepared: Prepared, address: str, root: Path, mark: Path, threads: int) -> dict[str, Any]:
    """What all hosts are told, and what must be there as it is here."""
    environ = {
        name: value for name, value in _environ(threads).items() if name.startswith(_PASSED_ON)
    }
    found = [one.found for one in (prepared.algorithm, *prepared.addons)]
    return {
        "path": [] if address else sys.path,
        "folder": os.getcwd(),
        "root": str(root),
        "environ": {**environ, "RLPLUG_HOME": str(root)},
        "plugins": [(plugin.kind, f"{plugin.distribution}:{plugin.name}") for plugin in found],
        "versions": versions(prepared),
        "token": mark.name,
        "content": mark.read_text(),
    }


@contextlib.contextmanager
def _marked(root: Path) -> Iterator[Path]:
    """A file in the runs folder, by which a host knows whether it has the same."""
    mark = root / f".shared-{uuid.uuid4().hex}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        mark.write_text(uuid.uuid4().hex)
    except OSError as error:
        raise RequestError(
            f"the runs folder {root} is not writable: {error.strerror or error}.",
            "try: RLPLUG_HOME=/another/folder rlplug run",
        ) from error
    try:
        yield mark
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


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
