"""Whose a checkpoint is, and what its config would import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlplug.checkpoint.manifest import CONFIG, MANIFEST, read_manifest, reading, step_name
from rlplug.config.sources import read_toml
from rlplug.errors import RequestError
from rlplug.tracking.location import runs_folder

__all__ = [
    "OF_POLICY",
    "OF_RUN",
    "is_own",
    "is_own_run",
    "mark_as_foreign",
    "own_copy",
    "refuse_foreign_imports",
]

OF_POLICY = ("algorithm", "addons", "modules")
"""The sections of a config that a policy is made from."""
OF_RUN = (*OF_POLICY, "env", "run.env")
"""All sections and options that may name code to import."""

FOREIGN = "foreign.txt"
"""The names of the checkpoints of a run that were downloaded from a server."""


def is_own(checkpoint: Path) -> bool:
    """Whether a checkpoint lies in the folder of the run that made it, in this runs folder.

    What was downloaded, even from one's own server, and folders elsewhere may come from anybody;
    so may a checkpoint of another run that somebody put there.
    """
    run = checkpoint.resolve().parent.parent
    foreign = run / FOREIGN
    downloaded = foreign.read_text().split() if foreign.exists() else []
    try:
        written_by = read_manifest(checkpoint).run_id
    except RequestError:
        return False
    return is_own_run(run) and written_by == run.name and checkpoint.name not in downloaded


def is_own_run(folder: Path) -> bool:
    """Whether a folder is that of a run in this runs folder."""
    folder = folder.resolve()
    works = (runs_folder() / "work").resolve()
    return folder.parent == works and (folder / "run.json").is_file()


def own_copy(checkpoint: Path) -> Path:
    """The same checkpoint in the folder of a run made here, or else the one given.

    Models in MLflow are copies of checkpoints.
    """
    manifest = read_manifest(checkpoint)
    run = runs_folder() / "work" / manifest.run_id
    own = run / "checkpoints" / step_name(manifest.step)
    try:
        same = (own / MANIFEST).read_bytes() == (checkpoint / MANIFEST).read_bytes()
    except OSError:
        return checkpoint
    return own if same and is_own(own) else checkpoint


def mark_as_foreign(run: Path, checkpoints: Iterable[Path]) -> None:
    """Note in the folder of a run which of its checkpoints were downloaded."""
    (run / FOREIGN).write_text("".join(f"{path.name}\n" for path in checkpoints))


def refuse_foreign_imports(
    folder: Path, parts: Iterable[str], arguments: Mapping[str, Any] | None = None
) -> None:
    """Refuse the config in a folder of somebody else if it names code to import.

    Importing runs code. Installed plugins are no danger: a config chooses among them only.
    `parts` are the sections or options that will be used: the others import nothing. `arguments`
    are those of the environment from elsewhere in a checkpoint.
    """
    with reading(folder, CONFIG):
        config = read_toml(folder / CONFIG)
        used = {part: _at(config, part) for part in parts}
        code = [*_paths({**used, "arguments": arguments or {}})]
    if code:
        raise RequestError(
            f"{folder} is not of a run that was made here, and its config names code to import:",
            *code,
            "try: --trust (in Python: trust=True; in MLflow: RLPLUG_TRUST=true), if you trust who "
            "made it",
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
        for name, part in value.items():
            yield from _paths(part, f"{where}.{name}" if where else str(name))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _paths(part, f"{where}[{index}]")
    elif isinstance(value, str) and ":" in value:
        harmless = where.startswith(("env.", "arguments.")) and "://" in value
        if not harmless or where.startswith("env.wrappers"):
            yield f"{where} = {value!r}"
