"""What a run was made from, as names and values; and what differs between two runs."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlplug.errors import RequestError
from rlplug.review.record import RunRecord
from rlplug.tracking.details import read_plugins
from rlplug.tracking.location import RunFolder, runs_folder, tracking_uri
from rlplug.tracking.lock import holder
from rlplug.tracking.search import tracked_params, tracked_tags

__all__ = ["NOTHING", "Difference", "differences"]

NOTHING = "none"
"""Stands for what only one of two runs has."""

_LOG = logging.getLogger("rlplug")

_CODE = {
    "mlflow.source.git.commit": "commit",
    "mlflow.source.git.branch": "branch",
    "rlplug.git_dirty": "changed",
    "rlplug.version": "rlplug",
}

_Facts = Mapping[str, Mapping[str, str]]


class Difference(NamedTuple):
    """One thing that is not the same in two runs."""

    part: str
    """`options`, `plugins`, `code` or `machine`."""
    name: str
    value_a: str
    value_b: str


def differences(a: RunRecord, b: RunRecord) -> list[Difference]:
    """What differs; of `[tracking]`, which says where a run is recorded, nothing."""
    here, there = _facts(a), _facts(b)
    return [
        Difference(part, name, one, other)
        for part in here
        for name in dict.fromkeys((*here[part], *there[part]))
        if (one := here[part].get(name, NOTHING)) != (other := there[part].get(name, NOTHING))
    ]


def _facts(run: RunRecord) -> _Facts:
    """From the folder, and from MLflow what is only there."""
    tags = _tags(run)
    plugins = dict(one.partition(" ")[::2] for one in read_plugins(run))
    host = tags.get("rlplug.host", "")
    if run.folder is not None:
        host = holder(run.folder).host or host
    code = {name: tags[tag] for tag, name in _CODE.items() if tag in tags}
    return {
        "options": _options(run),
        "plugins": plugins,
        "code": code,
        "machine": {"host": host} if host else {},
    }


def _tags(run: RunRecord) -> Mapping[str, str]:
    """From MLflow; of a run with a folder, nothing if that cannot be asked, which is said."""
    if not run.experiment_id:
        return {}
    try:
        known = None if run.folder is None else RunFolder.read(run.folder)
        uri = tracking_uri("", runs_folder()) if known is None else known.tracking_uri("")
        return tracked_tags(uri, run.run_id)
    except RequestError as error:
        if run.folder is None:
            raise
        _LOG.warning("rlplug: %s The code of run %s is not known.", error.message, run.run_id)
        return {}


def _options(run: RunRecord) -> dict[str, str]:
    """All options by their paths, without those of `[tracking]`."""
    if run.folder is None:
        every = tracked_params(tracking_uri("", runs_folder()), run.run_id)
    else:
        every = dict(_flat(_config(run.folder)))
    about = {"run.env": run.about.env} if run.about.env else {}
    options = {**every, **about}
    return {name: text for name, text in options.items() if not name.startswith("tracking.")}


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _flat(section: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
    """Paths and values as texts, as the params of MLflow are."""
    found = []
    for name, value in section.items():
        if isinstance(value, Mapping) and (value or not path):
            found += _flat(value, f"{path}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            found.append((f"{path}{name}", text))
    return found
