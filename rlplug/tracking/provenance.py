"""Record what a run was made from: plugins, code, machine; and what is not as in another run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs

from rlplug.hooks.events import RunInfo
from rlplug.registry import FoundPlugin
from rlplug.review.provenance import PROVENANCE, PluginRecord, Provenance, differences
from rlplug.tracking.location import without_secrets
from rlplug.tracking.opening import keep_file
from rlplug.tracking.status import add_tags
from rlplug.tracking.sync import LIKE

DIFF = "working_tree.diff"
GIT_SECONDS = 2.0
LONGEST_DIFF = 1_000_000
"""Bytes of a diff that is recorded; of a longer one only its hash is."""
_SHOWN = 30
"""How many differences from another run are shown; all of them are recorded."""
_PACKAGES = ("rlplug", "torch", "gymnasium", "numpy", "mlflow")


@attrs.frozen(kw_only=True)
class Likeness:
    """The run that a run is to be like."""

    run_id: str
    provenance: Provenance


def record_provenance(
    run: RunInfo,
    known: Provenance,
    folder: Path,
    warn: Callable[[str], None],
    *,
    diff: bool,
    like: Likeness | None,
) -> None:
    """Complete what is known of a run's origin, and keep it in its folder.

    Not in a thread: git could hand pipes to processes that are forked meanwhile.
    """
    changes = working_diff(Path.cwd()) if diff else b""
    code, tags = git_state(Path.cwd()), dict[str, str]()
    origin = code.pop("origin", "")
    if code:
        tags = {
            "mlflow.source.git.commit": code["commit"],
            "mlflow.source.git.branch": code["branch"],
            "rlplug.git_dirty": code["changed"],
            **({"mlflow.source.git.repoURL": origin} if origin else {}),
        }
        code |= {"diff": hashlib.sha256(changes).hexdigest()} if changes else {}
    here = _machine(run.device)
    tags |= {"rlplug.gpu": here["gpu"]} if here["gpu"] else {}
    complete = attrs.evolve(
        known,
        versions=_versions(),
        code=code,
        machine=here,
        rerunnable=run.rerunnable,
    )
    contents = {PROVENANCE: complete.to_json().encode()}
    if 0 < len(changes) <= LONGEST_DIFF:
        contents[DIFF] = changes
    if like is not None:
        lines = [difference.shown for difference in differences(like.provenance, complete)]
        for line in lines[:_SHOWN]:
            warn(f"not as in run {like.run_id[:8]}: {line}")
        if len(lines) > _SHOWN:
            warn(f"and {len(lines) - _SHOWN} more differences: {folder / LIKE}")
        contents[LIKE] = "\n".join([f"like run {like.run_id}", *lines, ""]).encode()
        tags |= {"rlplug.like": like.run_id, "rlplug.like_differences": str(len(lines))}
    try:
        add_tags(folder, tags)
        for name, content in contents.items():
            keep_file(folder / name, content)
    except OSError as error:
        warn(f"{folder / PROVENANCE} cannot be written: {error.strerror or error}.")


def git_state(folder: Path) -> dict[str, str]:
    """`commit`, `branch`, `changed` and `origin` of the repository around `folder`.

    `changed` is about tracked files. Empty without a repository.
    """
    status = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    lines = status.splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    if heads.get("branch.oid", "(initial)") == "(initial)":
        return {}
    origin = _git(folder, "config", "--get", "remote.origin.url")
    return {
        "commit": heads["branch.oid"],
        "branch": heads["branch.head"],
        "changed": str(any(not line.startswith("#") for line in lines)).lower(),
        "origin": without_secrets(origin.strip()),
    }


def working_diff(folder: Path) -> bytes:
    """What differs from the commit in the repository around `folder`, without passwords in URIs."""
    diff = _git(folder, "diff", "--no-color", "--no-ext-diff", "HEAD")
    if len(diff) <= LONGEST_DIFF:
        lines = diff.splitlines(keepends=True)
        diff = "".join(without_secrets(line) if "://" in line else line for line in lines)
    return diff.encode(errors="surrogateescape")


def plugin_record(found: FoundPlugin) -> PluginRecord:
    """The record of a plugin that was imported."""
    return PluginRecord(
        name=found.name,
        kind=found.kind,
        distribution=found.distribution,
        version=found.version,
        source_hash=_hash(_files_of(found)),
    )


@cache
def core_hash() -> str:
    """The source hash of rlplug itself, as it is when the process first asks."""
    return _hash(_files(sys.modules["rlplug"], whole=True))


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The CPU cores that this process may use, also of a container that sees more of them."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    with contextlib.suppress(OSError, ValueError):
        most, period = quota.read_text().split()
        # Rounded up.
        count = min(count, -(-int(most) // int(period)))
    return max(count, 1)


def _machine(device: str) -> dict[str, str]:
    """Host, operating system, CPU, its cores and how many threads torch uses, and the GPU."""
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and device.startswith("cuda") and torch.cuda.is_initialized()
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        cpu = next(models, cpu)
    return {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpu": cpu,
        "cores": str(cores()),
        "threads": str(0 if torch is None else torch.get_num_threads()),
        "gpu": str(torch.cuda.get_device_name(device)) if torch and on_gpu else "",
    }


def _versions() -> dict[str, str]:
    """Versions of Python and packages; of rlplug, which may be edited, the source hash as well."""
    known = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            known[name] = metadata.version(name)
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return {**known, "cuda": str(cuda or ""), "rlplug source": core_hash()}


def _hash(files: Sequence[Path]) -> str:
    """SHA-256 over names and contents of the files of a package, of which the first is on top."""
    whole = hashlib.sha256()
    named = sorted((file.relative_to(files[0].parent).as_posix(), file) for file in files)
    for name, file in named:
        content = file.read_bytes()
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest() if files else ""


def _files_of(found: FoundPlugin) -> list[Path]:
    """The Python files of a plugin."""
    module_name = found.target.partition(":")[0]
    # Passed from Python, it may stand in a notebook or in any program's package.
    whole = found.loaded is None
    return _files(
        sys.modules.get(module_name.partition(".")[0] if whole else module_name), whole=whole
    )


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
