"""The commit that a run was started from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rlplug.tracking.location import without_secrets

__all__ = ["git_tags"]

PATIENCE_SECONDS = 2.0


def git_tags(folder: Path) -> dict[str, str]:
    """Tags for commit, branch and origin of the repository around `folder`; none without one."""
    status = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    if status is None:
        return {}
    heads = [line.split(" ", 2) for line in status.splitlines() if line.startswith("# branch.")]
    known = {head[1]: head[2] for head in heads if len(head) == 3}
    commit = known.get("branch.oid", "")
    if not commit or commit == "(initial)":
        return {}
    tags = {"mlflow.source.git.commit": commit, "mlflow.source.git.branch": known["branch.head"]}
    dirty = any(not line.startswith("#") for line in status.splitlines())
    tags["rlplug.git_dirty"] = str(dirty).lower()
    origin = _git(folder, "config", "--get", "remote.origin.url")
    if origin:
        tags["mlflow.source.git.repoURL"] = without_secrets(origin.strip())
    return tags


def _git(folder: Path, *arguments: str) -> str | None:
    # Optional locks would have a run in the background disturb a commit in the foreground.
    command = ["git", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None
