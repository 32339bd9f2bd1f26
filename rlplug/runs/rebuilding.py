"""A run in another process: its options, its plugins by their names, and the same versions."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from rlplug.config.toml import as_mapping
from rlplug.envs import EnvMaker
from rlplug.errors import RequestError
from rlplug.registry import FoundPlugin, Registry
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request

__all__ = [
    "installed_versions",
    "job_of",
    "prepared_of",
    "rebuilt",
    "refuse_other_versions",
    "versions",
]


def job_of(prepared: Prepared, maker: EnvMaker) -> dict[str, Any]:
    """What another process must know to take part in a run; nothing is pickled."""
    return {"config": as_mapping(prepared.config), "env": maker, "versions": versions(prepared)}


def rebuilt(job: Mapping[str, Any]) -> Prepared:
    """The run from its options, with the plugins that are installed here."""
    prepared = prepared_of(job["config"], "the process that started the run")
    refuse_other_versions(versions(prepared), job["versions"])
    return prepared


def prepared_of(options: Mapping[str, Any], origin: str) -> Prepared:
    """The run with these options, which are of that origin."""
    # All that a preset sets is among them.
    flags = {**options, "run": {**options["run"], "preset": ""}}
    return prepare(Request(flags=flags, flags_origin=origin), Registry.installed())


def versions(prepared: Prepared) -> dict[str, str]:
    """What must be the same in all processes of the run."""
    return installed_versions([one.found for one in (prepared.algorithm, *prepared.addons)])


def installed_versions(plugins: Iterable[FoundPlugin]) -> dict[str, str]:
    """Those of Python, packages and plugins that are installed here; nothing is imported."""
    major, minor, _ = platform.python_version_tuple()
    return {
        "Python": f"{major}.{minor}",
        **{name: f"{name} {version(name)}" for name in ("rlplug", "torch")},
        **{f"plugin {one.name!r}": one.package for one in plugins},
    }


def refuse_other_versions(here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Raise if one differs from that of the process that started the run."""
    for name, wanted in there.items():
        if here.get(name) != wanted:
            raise RequestError(
                f"{name} is {here.get(name, 'absent')} on host {socket.gethostname()}, but "
                f"{wanted} where the run was started.",
                "try: the same versions on all hosts",
            )
