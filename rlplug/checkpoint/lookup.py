"""Find a checkpoint of a run, or by its folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from rlplug.checkpoint.manifest import (
    MANIFEST,
    STEPS,
    best_of,
    manifests_in,
    read_manifest,
    step_name,
    verify,
)
from rlplug.checkpoint.trust import own_copy
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.tracking.location import recorded_id, runs_folder, tracking_uri, without_secrets
from rlplug.tracking.model_registry import fetch_model, is_model_uri
from rlplug.tracking.resolve import resolve_one, split_checkpoint
from rlplug.tracking.store import fetch_run

_LOG = logging.getLogger("rlplug")


def find_checkpoint(run: str, which: str | int | Path = "best") -> Path:
    """The `best` or `last` checkpoint of a run, that of a step, or a folder; verified.

    `best` is that of the best evaluation, or the last one if there were no evaluations; one whose
    weights are not finite never is. `RUN@STEP` is the one at a step of the run, `RUN@last` the
    last one; those that were copied there from another run, or cannot be read, are left out.
    `models:/…` is that of a model in MLflow, without the state of training.
    """
    which = str(which)
    if is_model_uri(run):
        if which != "best":
            raise RequestError(f"{run!r} is a model, which has no checkpoint {which!r}.")
        path = own_copy(fetch_model(run, runs_folder()))
    else:
        run, after = split_checkpoint(run)
        which = after or which
        if which not in ("best", "last") and not which.isdecimal():
            path = absolute_path(which, "checkpoint")
        else:
            path = Path(run) if _is_folder(run) else _of_run(run, which)
    verify(path)
    return path


def _is_folder(run: str) -> bool:
    """Whether this is the folder of a checkpoint, complete or not."""
    # A name may be too long for a path.
    return os.path.isfile(f"{run}/{MANIFEST}") or (os.path.isdir(run) and Path(run).match(STEPS))


def _of_run(run: str, which: str) -> Path:
    folder = find_run(run)
    manifests, problems = manifests_in(folder / "checkpoints", recorded_id(folder))
    if not manifests:
        none = RequestError(f"run {run!r} has no checkpoint in {folder}.")
        raise [none, *problems.values()][-1]
    if which.isdecimal():
        path = folder / "checkpoints" / step_name(int(which))
        if path in problems:
            raise problems[path]
        if path not in manifests:
            steps = [manifest.step for manifest in manifests.values()]
            raise RequestError(
                f"run {run!r} has no checkpoint at step {int(which):,}.",
                f"it has: {', '.join(f'{step:,}' for step in steps)}",
                f"try: {run}@{min(steps, key=lambda step: abs(step - int(which)))}",
            )
        return path
    *_, last = manifests
    chosen = next(iter([last] if which == "last" else best_of(manifests)), None)
    if chosen is None:
        raise RequestError(
            f"run {run!r} has no checkpoint whose weights are finite.",
            "try: the last one (--checkpoint last), or another run",
        )
    for path, problem in problems.items():
        # Any of them may be the best; of those before the last one, none is the last.
        if which == "best" or path > last:
            taken = f"Step {manifests[chosen].step:,} is taken."
            _LOG.warning("rlplug: warning: %s %s", problem.message, taken)
    return chosen


def lasting_name(run: str) -> str:
    """A name of the checkpoint that `find_checkpoint(run)` finds now, for later: `RUN_ID@STEP`.

    `last`, `best:ENV`, the name of a group and `RUN@best` may mean another one by then.
    """
    path = find_checkpoint(run)
    if is_model_uri(run):
        return run
    manifest = read_manifest(path)
    own = runs_folder() / "work" / manifest.run_id / "checkpoints" / step_name(manifest.step)
    return f"{manifest.run_id}@{manifest.step}" if path == own else str(path.resolve())


def run_to_resume(run: str) -> Path:
    """The folder of a run, which is made anew from MLflow if it is gone or elsewhere."""
    record = resolve_one(run, best_of_group=False)
    if record.folder is not None:
        return record.folder
    # Also when nothing has to be restored.
    from rlplug.checkpoint.restore import restore_run

    return restore_run(record, runs_folder())


def find_run(run: str) -> Path:
    """The folder of a run in the runs folder, or else downloaded from MLflow.

    `rlplug.tracking.resolve` says how a run is named; of a group, this is the best one.
    """
    record = resolve_one(run)
    if record.folder is not None:
        return record.folder
    root = runs_folder()
    uri = tracking_uri("", root)
    fetched = fetch_run(record.run_id, uri, root)
    if fetched is None:
        raise RequestError(
            f"run {record.run_id} ({record.name}) is no longer at {without_secrets(uri)}.",
            "try: rlplug runs",
        )
    return fetched
