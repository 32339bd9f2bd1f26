"""A run in another process: its options, and its plugins by their names; nothing is pickled."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from rlplug.config.toml import as_mapping
from rlplug.envs import EnvMaker
from rlplug.errors import RequestError
from rlplug.registry import Registry, packages
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request

__all__ = ["job_of", "rebuilt", "versions"]


def job_of(prepared: Prepared, maker: EnvMaker) -> dict[str, Any]:
    """What another process must know to take part in a run."""
    return {"config": as_mapping(prepared.config), "env": maker, "versions": versions(prepared)}


def rebuilt(job: Mapping[str, Any]) -> Prepared:
    """The run from its options, with the plugins that are installed here."""
    request = Request(
        flags={**job["config"], "run": {**job["config"]["run"], "preset": ""}},
        flags_origin="the process that started the run",
    )
    prepared = prepare(request, Registry.installed())
    here = versions(prepared)
    for name, there in job["versions"].items():
        if here.get(name) != there:
            raise RequestError(
                f"{name} is {here.get(name, 'absent')} on host {socket.gethostname()}, but {there} "
                "where the run was started.",
                "try: the same versions on all hosts",
            )
    return prepared


def versions(prepared: Prepared) -> dict[str, str]:
    """What must be the same in all processes: Python, and the package of each plugin."""
    major, minor, _ = platform.python_version_tuple()
    plugins = packages([prepared.algorithm, *prepared.addons])
    return {
        "Python": f"{major}.{minor}",
        **{name: f"{name} {version(name)}" for name in ("rlplug", "torch")},
        **{f"plugin {name!r}": package for name, package in plugins.items()},
    }
