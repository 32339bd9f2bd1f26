"""The source code of a run: hashes of packages, and git of the folders that they and it are in."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from rlplug.registry import FoundPlugin
from rlplug.review.provenance import PluginRecord
from rlplug.tracking.location import without_secrets

__all__ = [
    "GitState",
    "core_hash",
    "git_state",
    "plugin_record",
    "source_hash",
    "with_commit",
    "working_diff",
]

_STARTING = threading.Lock()
"""Held while git is started, which threads do: a process that is forked meanwhile, as those of
environments are, would hold the ends of pipes that git closes, and git be waited for as long."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_STARTING.acquire,
        after_in_parent=_STARTING.release,
        after_in_child=_STARTING.release,
    )

GIT_SECONDS = 2.0
LONGEST_DIFF = 1_000_000
"""Bytes of a diff that is recorded; of a longer one only its hash is."""


@attrs.frozen(kw_only=True)
class GitState:
    """The git repository around a folder."""

    commit: str
    branch: str
    changed: bool
    """Whether tracked files differ from the commit."""
    origin: str = ""

    @property
    def shown_commit(self) -> str:
        """The commit, followed by `+` if files were changed since."""
        return f"{self.commit}+" if self.changed else self.commit

    def tags(self) -> dict[str, str]:
        """The tags by which MLflow shows a commit."""
        tags = {
            "mlflow.source.git.commit": self.commit,
            "mlflow.source.git.branch": self.branch,
            "rlplug.git_dirty": str(self.changed).lower(),
        }
        return tags | ({"mlflow.source.git.repoURL": self.origin} if self.origin else {})


def git_state(folder: Path, *, only: bool = False) -> GitState | None:
    """The state of the repository around `folder`, or of the folder `only`; None without one."""
    where = ("--", ".") if only else ()
    arguments = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", *where)
    status = _git(folder, *arguments)
    if status is None:
        return None
    lines = status.decode(errors="replace").splitlines()
    heads = [line.split(" ", 2) for line in lines if line.startswith("# branch.")]
    known = {head[1]: head[2] for head in heads if len(head) == 3}
    commit = known.get("branch.oid", "")
    if not commit or commit == "(initial)":
        return None
    origin = None if only else _git(folder, "config", "--get", "remote.origin.url")
    return GitState(
        commit=commit,
        branch=known["branch.head"],
        changed=any(not line.startswith("#") for line in lines),
        origin=without_secrets((origin or b"").decode(errors="replace").strip()),
    )


def working_diff(folder: Path) -> bytes:
    """What differs from the commit in the repository around `folder`, without passwords in URIs."""
    diff = _git(folder, "diff", "--no-color", "--no-ext-diff", "HEAD") or b""
    if len(diff) > LONGEST_DIFF:
        return diff
    lines = diff.decode(errors="surrogateescape").splitlines(keepends=True)
    shown = "".join(without_secrets(line) if "://" in line else line for line in lines)
    return shown.encode(errors="surrogateescape")


def plugin_record(found: FoundPlugin) -> PluginRecord:
    """The record of a plugin that was imported."""
    files, base = _files_of(found)
    return PluginRecord(
        name=found.name,
        kind=found.kind,
        distribution=found.distribution,
        version=found.version,
        source_hash=source_hash(files, base) if files else "",
    )


def with_commit(record: PluginRecord, found: FoundPlugin) -> PluginRecord:
    """The record with the commit of the plugin's source, if that lies in a git work tree."""
    files, base = _files_of(found)
    # An environment inside a repository is not part of it.
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    if not files or installed & {base, *base.parents}:
        return record
    state = git_state(files[0].parent, only=True)
    return record if state is None else attrs.evolve(record, commit=state.shown_commit)


def source_hash(files: Sequence[Path], base: Path) -> str:
    """SHA-256 over names, relative to `base`, and contents of files, sorted by name."""
    found = hashlib.sha256()
    for file in sorted(files, key=lambda one: one.relative_to(base).as_posix()):
        try:
            content = file.read_bytes()
        except OSError:
            continue
        found.update(f"{file.relative_to(base).as_posix()}\0{len(content)}\0".encode())
        found.update(content)
    return found.hexdigest()


def _files_of(found: FoundPlugin) -> tuple[list[Path], Path]:
    """The Python files of a plugin, and the folder that their names are relative to."""
    module_name = found.target.partition(":")[0]
    if found.loaded is not None:
        # Passed from Python: it may stand in a notebook or in any program's package.
        return _files(sys.modules.get(module_name), whole=False)
    return _files(sys.modules.get(module_name.partition(".")[0]), whole=True)


def _files(module: Any, *, whole: bool) -> tuple[list[Path], Path]:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or not Path(file).is_file():
        return [], Path()
    path = Path(file).resolve()
    if whole and path.name == "__init__.py":
        return sorted(path.parent.rglob("*.py")), path.parent
    return [path], path.parent


@cache
def core_hash() -> str:
    """The source hash of rlplug itself, as it is when the process first asks."""
    files, base = _files(sys.modules["rlplug"], whole=True)
    return source_hash(files, base) if files else ""


def _git(folder: Path, *arguments: str) -> bytes | None:
    # Optional locks could make a commit fail that is made meanwhile.
    command = ["git", "--no-optional-locks", *arguments]
    try:
        with _STARTING:
            process = subprocess.Popen(
                command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
    except OSError:
        return None
    with process:
        try:
            answer, _ = process.communicate(timeout=GIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
    return answer if process.returncode == 0 else None
