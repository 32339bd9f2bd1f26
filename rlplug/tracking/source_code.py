"""The source code of a run: hashes of packages, and git of the folders that they and it are in."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from rlplug.registry import FoundPlugin
from rlplug.review.provenance import PluginRecord
from rlplug.tracking.location import without_secrets

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

    def tags(self) -> dict[str, str]:
        """The tags by which MLflow shows a commit."""
        tags = {
            "mlflow.source.git.commit": self.commit,
            "mlflow.source.git.branch": self.branch,
            "rlplug.git_dirty": str(self.changed).lower(),
            "mlflow.source.git.repoURL": self.origin,
        }
        return {name: value for name, value in tags.items() if value}


def git_state(folder: Path, *, only: bool = False) -> GitState | None:
    """The state of the repository around `folder`, or of the folder `only`; None without one."""
    where = ("--", ".") if only else ()
    status = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no", *where)
    lines = status.splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit = heads.get("branch.oid", "(initial)")
    if commit == "(initial)":
        return None
    origin = "" if only else _git(folder, "config", "--get", "remote.origin.url")
    return GitState(
        commit=commit,
        branch=heads["branch.head"],
        changed=any(not line.startswith("#") for line in lines),
        origin=without_secrets(origin.strip()),
    )


def working_diff(folder: Path) -> bytes:
    """What differs from the commit in the repository around `folder`, without passwords in URIs."""
    diff = _git(folder, "diff", "--no-color", "--no-ext-diff", "HEAD")
    if len(diff) <= LONGEST_DIFF:
        lines = diff.splitlines(keepends=True)
        diff = "".join(without_secrets(line) if "://" in line else line for line in lines)
    return diff.encode(errors="surrogateescape")


def plugin_record(found: FoundPlugin) -> PluginRecord:
    """The record of a plugin that was imported."""
    files = _files_of(found)
    return PluginRecord(
        name=found.name,
        kind=found.kind,
        distribution=found.distribution,
        version=found.version,
        source_hash=_hash(files) if files else "",
    )


def with_commit(record: PluginRecord, found: FoundPlugin) -> PluginRecord:
    """The record with the commit of the plugin's source, if that lies in a git work tree."""
    files = _files_of(found)
    # An environment inside a repository is not part of it.
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    if not files or installed & {*files[0].parents}:
        return record
    state = git_state(files[0].parent, only=True)
    if state is None:
        return record
    return attrs.evolve(record, commit=f"{state.commit}{'+' if state.changed else ''}")


@cache
def core_hash() -> str:
    """The source hash of rlplug itself, as it is when the process first asks."""
    return _hash(_files(sys.modules["rlplug"], whole=True))


def _hash(files: Sequence[Path]) -> str:
    """SHA-256 over names and contents of the files of a package, of which the first is on top."""
    whole = hashlib.sha256()
    for name, file in sorted(
        (file.relative_to(files[0].parent).as_posix(), file) for file in files
    ):
        content = file.read_bytes()
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def _files_of(found: FoundPlugin) -> list[Path]:
    """The Python files of a plugin."""
    module_name = found.target.partition(":")[0]
    if found.loaded is not None:
        # Passed from Python: it may stand in a notebook or in any program's package.
        return _files(sys.modules.get(module_name), whole=False)
    return _files(sys.modules.get(module_name.partition(".")[0]), whole=True)


def _files(module: Any, *, whole: bool) -> list[Path]:
    """The file of a module, then, of a `whole` package, the others of it."""
    file = Path(getattr(module, "__file__", None) or "none")
    if file.suffix != ".py" or not file.is_file():
        return []
    file = file.resolve()
    is_package = whole and file.name == "__init__.py"
    return [file, *(other for other in file.parent.rglob("*.py") if is_package and other != file)]


def _git(folder: Path, *arguments: str) -> str:
    """What git answers; empty if it does not within seconds, or refuses."""
    # Optional locks could make a commit fail that is made meanwhile.
    command = ["git", "--no-optional-locks", *arguments]
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode(errors="surrogateescape") if answer.returncode == 0 else ""
