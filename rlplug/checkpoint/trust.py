"""Whose a checkpoint is, and what its config would import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlplug.checkpoint.manifest import CONFIG, MANIFEST, read_manifest, reading
from rlplug.config.sources import read_toml
from rlplug.errors import RequestError
from rlplug.tracking.location import runs_folder

__all__ = ["is_own", "mark_as_foreign", "own_copy", "refuse_foreign_imports"]

FOREIGN = "foreign.txt"
"""The names of the checkpoints of a run that were downloaded from a server."""


def is_own(checkpoint: Path) -> bool:
    """Whether a checkpoint lies in the folder of the run that made it, in this runs folder.

    What was downloaded, even from one's own server, and folders elsewhere may come from anybody;
    so may a checkpoint of another run that somebody put there.
    """
    run = checkpoint.resolve().parent.parent
    if run.parent != (runs_folder() / "work").resolve() or not (run / "run.json").is_file():
        return False
    try:
        if read_manifest(checkpoint).run_id != run.name:
            return False
    except RequestError:
        return False
    try:
        return checkpoint.name not in (run / FOREIGN).read_text().split()
    except FileNotFoundError:
        return True


def own_copy(checkpoint: Path) -> Path:
    """The same checkpoint in the folder of a run made here, or else the one given.

    Models in MLflow are copies of checkpoints.
    """
    manifest = read_manifest(checkpoint)
    name = f"step-{manifest.step:012d}"
    own = runs_folder() / "work" / manifest.run_id / "checkpoints" / name
    try:
        same = (own / MANIFEST).read_bytes() == (checkpoint / MANIFEST).read_bytes()
    except OSError:
        return checkpoint
    return own if same and is_own(own) else checkpoint


def mark_as_foreign(run: Path, checkpoints: Iterable[Path]) -> None:
    """Note in the folder of a run which of its checkpoints were downloaded."""
    (run / FOREIGN).write_text("".join(f"{one.name}\n" for one in checkpoints))


def refuse_foreign_imports(
    checkpoint: Path,
    parts: Iterable[str],
    *,
    trust: bool,
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Refuse a checkpoint of somebody else whose config names code to import.

    Importing runs code. Installed plugins are no danger: a config chooses among them only.
    `parts` are the sections or options that will be used: the others import nothing. `arguments`
    are those of the environment from elsewhere in the checkpoint.
    """
    if trust or is_own(checkpoint):
        return
    with reading(checkpoint, CONFIG):
        config = read_toml(checkpoint / CONFIG)
        used = {part: _at(config, part) for part in parts}
        found = [*_paths({**used, "arguments": arguments or {}})]
    if found:
        raise RequestError(
            f"the checkpoint {checkpoint} is not of a run that was made here, and its config "
            "names code to import:",
            *found,
            "try: --trust (in Python: trust=True), if you trust who made it",
        )


def _at(config: Any, part: str) -> Any:
    for name in part.split("."):
        config = config.get(name, {}) if isinstance(config, Mapping) else {}
    return config


def _paths(value: Any, where: str = "") -> Iterator[str]:
    """The texts that may be an import path, `module:name`.

    Of `http://…` as an encoder, `http` would be imported; environments may need such addresses.
    """
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _paths(one, f"{where}.{name}" if where else str(name))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _paths(one, f"{where}[{index}]")
    elif isinstance(value, str) and ":" in value:
        harmless = where.startswith(("env.", "arguments.")) and "://" in value
        if not harmless or where.startswith("env.wrappers"):
            yield f"{where} = {value!r}"
