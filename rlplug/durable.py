"""Files that survive a crash and a power cut: written, synced, and renamed into place."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlplug.errors import RequestError

_UNFINISHED = re.compile(r".+\.new-\d+")
_AT_ONCE = 16
"""How many are synced at once."""


def write_durably(path: Path, content: bytes) -> None:
    """Write a file beside, fsync it, and rename it into place."""
    partial = unfinished(path)
    try:
        write_content(partial, content)
        sync_all([partial])
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync_folder(path.parent)


def unfinished(path: Path) -> Path:
    """What this process calls a file until it is complete."""
    return path.with_name(f"{path.name}.new-{os.getpid()}")


def is_unfinished(path: Path) -> bool:
    """Whether a file is being written, or was when its process was killed."""
    return _UNFINISHED.fullmatch(path.name) is not None


def write_content(path: Path, content: bytes) -> str:
    """Write a file, which is not synced; returns its SHA-256."""
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def sync_all(paths: Sequence[Path]) -> None:
    """fsync files and folders, all at once: what the disk has to do for each, it does once."""
    if len(paths) == 1:
        _sync(paths[0])
        return
    with ThreadPoolExecutor(_AT_ONCE) as beside:
        for _ in beside.map(_sync, paths):
            """Raises what one of them raised."""


def _sync(path: Path) -> None:
    if path.is_dir():
        sync_folder(path)
        return
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """fsync a folder, which makes a rename durable, where the system supports it."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def absolute_path(path: str | os.PathLike[str], source: str) -> Path:
    """The absolute path, with `~` and `~user` replaced by a home folder."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise RequestError(
            f"{source} {str(path)!r} begins with the home folder of a user that does not exist.",
            "try: an absolute path",
        ) from error
