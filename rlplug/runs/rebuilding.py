"""A run in another process: its options, and its plugins by their names; nothing is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlplug.config.toml import as_mapping
from rlplug.envs import EnvMaker
from rlplug.registry import Registry
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request
from rlplug.runs.versions import installed_versions, refuse_other_versions

__all__ = ["job_of", "prepared_of", "rebuilt", "versions"]


def job_of(prepared: Prepared, maker: EnvMaker) -> dict[str, Any]:
    """What another process must know to take part in a run."""
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
