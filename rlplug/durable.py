"""Files that survive a crash and a power cut: written, synced, and renamed into place."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

__all__ = ["sync_folder", "write_content", "write_durably"]


def write_durably(path: Path, content: bytes) -> None:
    """Write a file beside, fsync it, and rename it into place."""
    partial = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        write_content(partial, content)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_content(path: Path, content: bytes) -> str:
    """Write a file and fsync it; returns its SHA-256."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def sync_folder(folder: Path) -> None:
    """fsync a folder, which makes a rename durable, where the system supports it."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
