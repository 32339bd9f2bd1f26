"""Where several runs are carried out: in processes here, or on hosts of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.scale_section import ScaleSection
from rlplug.config.strict import structure
from rlplug.errors import RequestError
from rlplug.registry import FoundPlugin, Registry
from rlplug.runs.request import Request, find_plugins, layers_of
from rlplug.runs.seeds.asked import Share, num_threads, share
from rlplug.runs.seeds.carry_out import Launch
from rlplug.runs.seeds.on_ray import Host, RayProcess
from rlplug.runs.seeds.process import Event, launch_here
from rlplug.runs.seeds.state import SeedState
from rlplug.runs.versions import installed_versions
from rlplug.scale.cluster import connected
from rlplug.tracking.location import is_http, sqlite_file, tracking_uri

__all__ = ["Placement", "placed", "spread_by"]

_OF_EACH_RUN = ("runners", "envs_per_runner", "learners")
"""Options that spread each run by itself: then its learner is in a process of this host."""

_PASSED_ON = ("MLFLOW_", "RLPLUG_", "OMP_NUM_THREADS")
"""Environment variables that a run needs wherever it is."""


@attrs.frozen(kw_only=True)
class Placement:
    """How many runs are carried out at a time, and what starts one."""

    each: Share
    launch: Launch
    where: str = ""
    """For people, where that is not this host."""

    def __str__(self) -> str:
        threads = f"{self.each.threads} thread{'' if self.each.threads == 1 else 's'}"
        return f"{self.each.jobs} at a time{self.where}, {threads} each"


def spread_by(request: Request) -> ScaleSection | None:
    """How the runs are spread over a Ray cluster, each as a whole; None: they are not."""
    values = _section(request, "scale", [one.name for one in attrs.fields(ScaleSection)])
    if values.get("engine") != "ray" or any(name in values for name in _OF_EACH_RUN):
        return None
    # What is wrong with them is said by the runs.
    return structure(ScaleSection, values, "scale")[0]


@contextlib.contextmanager
def placed(
    request: Request, section: ScaleSection | None, count: int, jobs: int, root: Path
) -> Iterator[Placement]:
    """Places for so many runs, `jobs` of them at a time; 0: as many as there is room for."""
    each = share(request, range(count), jobs)
    if section is None:
        yield Placement(each=each, launch=launch_here(each.environ()))
        return
    found = find_plugins(layers_of(request), Registry.installed())
    with connected(section, whole_runs=True) as ray:
        nodes = [one for one in ray.nodes() if one["Alive"]]
        hosts = {one["NodeManagerHostname"] for one in nodes}
        if hosts - {socket.gethostname()}:
            _refuse_database(request, root)
        room = sum(_room(one["Resources"], section) for one in nodes)
        threads = num_threads(request) or max(int(section.runner_cpus), 1)
        each = Share(max(min(jobs or room, count), 1), threads)
        several = f" on {len(hosts)} hosts" if len(hosts) > 1 else " on a Ray cluster"
        with _marked(root) as mark:
            launch = _launch(ray, section, _job(root, each, section, found, mark))
            yield Placement(each=each, launch=launch, where=several)


def _launch(ray: Any, section: ScaleSection, job: Mapping[str, Any]) -> Launch:
    kind = ray.remote(
        num_cpus=section.runner_cpus,
        num_gpus=section.runner_gpus,
        resources=dict(section.runner_resources) or None,
        max_restarts=0,
        # One asks for events while others are told something.
        max_concurrency=4,
    )(Host)

    def launch(state: SeedState, put: Callable[[Event], None]) -> RayProcess:
        order = {**state.order, "part": {**state.part, "placed": True}}
        return RayProcess(ray, kind.remote(state.name, {**job, "order": order}), state.name, put)

    return launch


def _job(
    root: Path,
    each: Share,
    section: ScaleSection,
    plugins: list[FoundPlugin],
    mark: Path,
) -> dict[str, Any]:
    """What all hosts are told, and what must be there as it is here."""
    environ = {name: value for name, value in each.environ().items() if name.startswith(_PASSED_ON)}
    return {
        "path": [] if section.address else sys.path,
        "folder": os.getcwd(),
        "root": str(root),
        "environ": {**environ, "RLPLUG_HOME": str(root)},
        "plugins": [(one.kind, f"{one.distribution}:{one.name}") for one in plugins],
        "versions": installed_versions(plugins),
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


def _refuse_database(request: Request, root: Path) -> None:
    """Refuse a file as the database of runs on several hosts, which would damage it."""
    values = _section(request, "tracking", ("enabled", "uri"))
    if values.get("enabled") is False:
        return
    uri = tracking_uri(str(values.get("uri", "")), root)
    if sqlite_file(uri) is None and (is_http(uri) or "://" in uri):
        return
    raise RequestError(
        f"runs on other hosts of the Ray cluster cannot be recorded in {uri}.",
        "try: MLFLOW_TRACKING_URI=http://HOST:PORT, of an MLflow server that all hosts reach, or "
        "--set tracking.enabled=false",
    )


def _room(node: Mapping[str, float], section: ScaleSection) -> int:
    """How many runs fit on a node."""
    wanted = {"CPU": section.runner_cpus, "GPU": section.runner_gpus, **section.runner_resources}
    # Ray counts in ten thousandths.
    counts = [int(node.get(name, 0) / one + 1e-4) for name, one in wanted.items() if one]
    return min(counts, default=int(node.get("CPU", 1)))


def _section(request: Request, section: str, names: Iterable[str]) -> dict[str, Any]:
    """The values of a section that a request gives: by file, flags or settings."""
    known = set(names)
    found = layers_of(request).section(section)
    values: dict[str, Any] = dict(found) if isinstance(found, Mapping) else {}
    for setting in request.settings:
        name = setting.key.removeprefix(f"{section}.")
        if name in known and (name != setting.key or section == "scale"):
            values[name] = setting.value
    return values
