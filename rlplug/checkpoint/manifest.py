"""The manifest of a checkpoint: its metadata and file digests, written last."""

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
    """Metadata of a checkpoint, and the digests of its files."""

    run_id: str
    step: int
    updates: int
    plugins: Mapping[str, str]
    """Plugin → distribution and version that wrote the checkpoint."""
    evaluation: Mapping[str, float] = attrs.field(factory=dict)
    """Metrics of the evaluation at this step; empty without one."""
    finite: bool = True
    """Whether all weights are finite; otherwise it is never the best."""
    files: Mapping[str, str] = attrs.field(factory=dict)
    """Relative path → SHA-256."""
    format: int = FORMAT

    @property
    def score(self) -> float:
        """Mean return of the evaluation, by which the best is chosen; -inf without one."""
        value = float(self.evaluation.get("eval/return_mean", "-inf"))
        return value if value == value else float("-inf")

    def content(self) -> bytes:
        """The file content."""
        return json.dumps(attrs.asdict(self), indent=2).encode() + b"\n"


def is_checkpoint(folder: Path) -> bool:
    """Whether this folder is a complete checkpoint."""
    return (folder / MANIFEST).is_file()


def checkpoints_in(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, in order of steps."""
    found = [one for one in folder.glob(_FOLDERS) if is_checkpoint(one)]
    return sorted(found, key=lambda one: one.name)


def best_in(found: Sequence[Path]) -> list[Path]:
    """The first checkpoint with the best evaluation, or the last if none was evaluated.

    As a list, empty where no checkpoint has finite weights.
    """
    scores = {one: manifest.score for one in found if (manifest := read_manifest(one)).finite}
    best = max(scores, key=lambda one: scores[one], default=None)
    if best is not None and scores[best] == float("-inf"):
        best = list(scores)[-1]
    return [] if best is None else [best]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint."""
    path = folder / MANIFEST
    try:
        read: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RequestError(
            f"{folder} is not a checkpoint: it has no {MANIFEST}.",
            "try: a folder step-… of the run's checkpoints",
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
        raise damaged(folder, f"its {MANIFEST} is invalid: {error}") from error


def verify(folder: Path) -> Manifest:
    """Verify the digests of all files; returns the manifest."""
    manifest = read_manifest(folder)
    for name, wanted in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise damaged(folder, f"{name} is missing")
        if digest(path) != wanted:
            raise damaged(folder, f"{name} does not match its digest")
    return manifest


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damaged(folder: Path, reason: str) -> RequestError:
    """The error for a damaged checkpoint."""
    return RequestError(
        f"the checkpoint {folder} is damaged: {reason}.",
        "try: another checkpoint of the run, such as --checkpoint last",
    )
