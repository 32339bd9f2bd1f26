"""The package of a new plugin, made from templates: complete, or not there at all."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Literal

import attrs

from rlplug.errors import RequestError
from rlplug.registry import ADDON, ALGORITHM, Kind, Registry, core_version
from rlplug.scaffold.names import Names

__all__ = ["Created", "Flavour", "create_package"]

Flavour = Literal["algorithm", "bandit", "addon"]

_FOLDERS: dict[Flavour, tuple[str, ...]] = {
    "algorithm": ("common", "algorithm"),
    # A bandit differs in few files, which replace those of the algorithm.
    "bandit": ("common", "algorithm", "bandit"),
    "addon": ("common", "addon"),
}
_SUMMARIES: dict[Flavour, str] = {
    "algorithm": "Policy gradient with a learned baseline",
    "bandit": "Policy gradient with a learned baseline, for contextual bandits",
    "addon": "A penalty on the distance from the initial weights",
}
_SUFFIX = ".template"


@attrs.frozen
class Created:
    """A package that was written."""

    names: Names
    folder: Path
    summary: str


def create_package(name: str, flavour: Flavour, parent: Path, registry: Registry) -> Created:
    """Write the package of a new plugin into `parent`, under the name of its distribution."""
    kind: Kind = ADDON if flavour == "addon" else ALGORITHM
    templates = dict(_templates(flavour))
    names = Names.of(name, kind, _class_names(templates))
    names.check_not_taken(registry)
    folder = parent / names.distribution
    if folder.exists() or folder.is_symlink():
        raise RequestError(
            f"there is already {folder}.", "try: another name, or move what is there"
        )
    values = {
        "name": names.plugin,
        "distribution": names.distribution,
        "package": names.package,
        "class_name": names.class_name,
        "group": "addons" if kind == ADDON else "algorithms",
        "supported": _supported(core_version()),
        "summary": _SUMMARIES[flavour],
    }
    try:
        _write(folder, templates, values)
    except OSError as error:
        raise RequestError(
            f"{folder} cannot be written: {error.strerror or error}.",
            "try: in a folder where you may write",
        ) from error
    return Created(names, folder, _SUMMARIES[flavour])


def _write(folder: Path, templates: dict[str, str], values: dict[str, str]) -> None:
    """Write beside the folder first, so that a failure leaves nothing."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        # mkdtemp is for its owner alone; a package is as other folders are.
        umask = os.umask(0)
        os.umask(umask)
        unfinished.chmod(0o777 & ~umask)
        for path, text in templates.items():
            file = unfinished / path.replace("package/", f"{values['package']}/", 1)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Template(text).substitute(values), encoding="utf-8")
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _templates(flavour: Flavour) -> Iterator[tuple[str, str]]:
    """The files of a package by their paths; later ones replace earlier ones."""
    for name in _FOLDERS[flavour]:
        yield from _files(files("rlplug.scaffold") / "templates" / name, "")


def _files(folder: Traversable, path: str) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield path + entry.name.removesuffix(_SUFFIX), entry.read_text(encoding="utf-8")


def _class_names(templates: dict[str, str]) -> set[str]:
    """The capitalised words of the templates: a class of such a name would hide another."""
    return {word for text in templates.values() for word in re.findall(r"\b[A-Z]\w*", text)}


def _supported(version: str) -> str:
    """The versions of rlplug that a plugin for this one works with: `>=0.1,<0.2`."""
    major, minor = version.split(".")[:2]
    return f">={major}.{minor},<{major}.{int(minor) + 1}"
