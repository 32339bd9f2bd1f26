"""The manifest of a checkpoint: written last, it says what is there and that it is complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlplug.errors import RequestError

__all__ = [
    "MANIFEST",
    "Manifest",
    "best_in",
    "checkpoints_in",
    "is_checkpoint",
    "read_manifest",
    "verify",
]

MANIFEST = "manifest.json"
FORMAT = 1

_FOLDERS = "step-*"


@attrs.frozen(kw_only=True)
class Manifest:
    """What a checkpoint is of, and the digests of its files."""

    run_id: str
    step: int
    updates: int
    plugins: Mapping[str, str]
    """Plugin → distribution and version that wrote it."""
    evaluation: Mapping[str, float] = attrs.field(factory=dict)
    """The metrics of the evaluation at this step; empty without one."""
    files: Mapping[str, str] = attrs.field(factory=dict)
    """Path in the folder → SHA-256."""
    format: int = FORMAT

    @property
    def score(self) -> float:
        """What the best checkpoint has most of; minus infinity without an evaluation."""
        value = float(self.evaluation.get("eval/return_mean", "-inf"))
        return value if value == value else float("-inf")

    def content(self) -> bytes:
        """As it is written."""
        return json.dumps(attrs.asdict(self), indent=2).encode() + b"\n"


def is_checkpoint(folder: Path) -> bool:
    """Whether this folder is one checkpoint."""
    return (folder / MANIFEST).is_file()


def checkpoints_in(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, the earliest first."""
    found = [one for one in folder.glob(_FOLDERS) if is_checkpoint(one)]
    return sorted(found, key=lambda one: one.name)


def best_in(found: Sequence[Path]) -> list[Path]:
    """The one whose evaluation was best, if any was evaluated; of equal ones the first."""
    scores = {one: read_manifest(one).score for one in found}
    best = max(found, key=lambda one: scores[one], default=None)
    return [best] if best is not None and scores[best] > float("-inf") else []


def read_manifest(folder: Path) -> Manifest:
    """What a checkpoint says of itself."""
    path = folder / MANIFEST
    try:
        read: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RequestError(
            f"{folder} is no checkpoint: it has no {MANIFEST}.",
            "try: a folder named step-… in the checkpoints of a run",
        ) from None
    except (OSError, ValueError) as error:
        raise damaged(folder, f"its {MANIFEST} cannot be read: {error}") from error
    if read.get("format") != FORMAT:
        raise RequestError(
            f"the checkpoint {folder} has format {read.get('format')!r}, this rlplug reads "
            f"{FORMAT}.",
            "try: the version of rlplug that wrote it",
        )
    try:
        return Manifest(**read)
    except TypeError as error:
        raise damaged(folder, f"its {MANIFEST} is not one: {error}") from error


def verify(folder: Path) -> Manifest:
    """The manifest, once every file is found to be what was written."""
    manifest = read_manifest(folder)
    for name, wanted in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise damaged(folder, f"{name} is missing")
        if digest(path) != wanted:
            raise damaged(folder, f"{name} is not what was written")
    return manifest


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damaged(folder: Path, reason: str) -> RequestError:
    """A checkpoint that cannot be used."""
    return RequestError(
        f"the checkpoint {folder} is damaged: {reason}.",
        "try: another checkpoint of the run, such as --checkpoint last",
    )
