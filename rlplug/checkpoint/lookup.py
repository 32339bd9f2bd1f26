"""Find a checkpoint of a run, or by its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rlplug.checkpoint.manifest import (
    STEPS,
    TRAINING,
    best_in,
    checkpoints_in,
    is_checkpoint,
    misplaced,
    read_manifest,
    step_name,
    verify,
)
from rlplug.checkpoint.trust import own_copy
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.quantities import is_whole_number
from rlplug.tracking.artifacts import fetch_run
from rlplug.tracking.location import recorded_id, runs_folder, tracking_uri, without_secrets
from rlplug.tracking.model_registry import fetch_model, is_model_uri
from rlplug.tracking.resolve import resolve_one, split_checkpoint

__all__ = ["find_checkpoint", "find_run", "lasting_name", "run_to_resume"]

_LOG = logging.getLogger("rlplug")


def find_checkpoint(run: str, which: str | int | Path = "best") -> Path:
    """The `best` or `last` checkpoint of a run, that of a step, or a folder; verified.

    `best` is that of the best evaluation, or the last one if there were no evaluations; one whose
    weights are not finite never is. `RUN@STEP` is the one at a step of the run, `RUN@last` the
    last one; those that were copied there from another run are left out. `models:/…` is that of a
    model in MLflow, without the state of training.
    """
    which = _asked_for(which)
    if is_model_uri(run):
        return _of_model(run, which)
    run, after = split_checkpoint(run)
    which = after or which
    named = True
    if which not in ("best", "last") and not which.isdecimal():
        chosen = absolute_path(which, "checkpoint")
    elif _is_folder(run):
        chosen = Path(run)
    else:
        named = False
        folder = find_run(run)
        found = checkpoints_in(folder / "checkpoints")
        unusable = _unusable(folder, found)
        found = [one for one in found if one not in unusable]
        if unusable and not found:
            raise list(unusable.values())[-1]
        if not found:
            raise RequestError(
                f"run {run!r} has no checkpoint in {folder}.",
                "try: a run that saved a checkpoint",
            )
        if which.isdecimal():
            for one, problem in unusable.items():
                if one.name == step_name(int(which)):
                    raise problem
            chosen = _at_step(run, int(which), found)
        else:
            chosen = found[-1] if which == "last" else _best(run, found)
            if which == "last":
                # Earlier ones are not asked for.
                unusable = {one: why for one, why in unusable.items() if one.name > chosen.name}
            _tell(unusable.values(), chosen)
    verify(chosen, training=not named or _has_training(chosen))
    return chosen


def _asked_for(which: Any) -> str:
    """`best`, `last`, the digits of a step, or a folder."""
    if is_whole_number(which) and which >= 0:
        return str(int(which))
    if isinstance(which, str | Path) and str(which).strip():
        return str(which)
    raise RequestError(
        f"a checkpoint is best, last, a step from 0 on, or a folder, found {which!r}.",
        "try: best",
    )


def _is_folder(run: str) -> bool:
    """Whether this is the folder of a checkpoint."""
    folder = Path(run)
    try:
        # The second is an incomplete one, of which `verify` says what is missing.
        return is_checkpoint(folder) or (folder.is_dir() and folder.match(STEPS))
    except OSError as error:
        raise RequestError(
            f"there can be no checkpoint at {run}: {error.strerror}.",
            "try: the name of a run, or a folder that can be read",
        ) from error


def lasting_name(run: str) -> str:
    """A name of the checkpoint that `find_checkpoint(run)` finds now, for later: `RUN_ID@STEP`.

    `last`, `best:ENV`, the name of a group and `RUN@best` may mean another one by then.
    """
    checkpoint = find_checkpoint(run)
    if is_model_uri(run):
        return run
    manifest = read_manifest(checkpoint)
    own = misplaced(checkpoint, manifest, recorded_id(checkpoint.parent.parent)) is None
    if own and checkpoint.is_relative_to(runs_folder()):
        return f"{manifest.run_id}@{manifest.step}"
    return str(checkpoint.resolve())


def _of_model(uri: str, which: str) -> Path:
    if which != "best":
        raise RequestError(
            f"{uri!r} is a model, which has one checkpoint: there is no {which!r}.",
            "try: the run that it comes from",
        )
    chosen = own_copy(fetch_model(uri, runs_folder()))
    verify(chosen, training=_has_training(chosen))
    return chosen


def _has_training(checkpoint: Path) -> bool:
    """Whether it has the state of training; that of a model has not."""
    return (checkpoint / TRAINING).is_dir()


def _unusable(folder: Path, complete: Sequence[Path]) -> dict[Path, RequestError]:
    """The checkpoints of a run without a manifest, or with that of another, in order of steps."""
    run_id = recorded_id(folder)
    problems = {}
    for one in sorted((folder / "checkpoints").glob(STEPS), key=lambda one: one.name):
        try:
            problem = misplaced(one, read_manifest(one), run_id)
        except RequestError as error:
            # One with a damaged manifest is refused where that is needed.
            problem = None if one in complete else error
        if problem is not None:
            problems[one] = problem
    return problems


def _tell(problems: Iterable[RequestError], chosen: Path) -> None:
    """Warn of checkpoints that are left out, any of which may be the one that was meant."""
    for problem in problems:
        _LOG.warning(
            "rlplug: warning: %s The checkpoint of step %s is taken.",
            problem.message,
            f"{read_manifest(chosen).step:,}",
        )


def _at_step(run: str, step: int, found: Sequence[Path]) -> Path:
    steps = {read_manifest(one).step: one for one in found}
    if step in steps:
        return steps[step]
    raise RequestError(
        f"run {run!r} has no checkpoint at step {step:,}.",
        f"it has: {', '.join(f'{one:,}' for one in steps)}",
        f"try: {run}@{min(steps, key=lambda one: abs(one - step))}",
    )


def _best(run: str, found: Sequence[Path]) -> Path:
    for best in best_in(found):
        return best
    raise RequestError(
        f"run {run!r} has no checkpoint whose weights are finite.",
        "try: the last one (--checkpoint last), or another run",
    )


def run_to_resume(run: str, *, trust: bool) -> Path:
    """The folder of a run, which is made anew from MLflow if it is gone or elsewhere."""
    record = resolve_one(run, best_of_group=False)
    if record.folder is not None:
        return record.folder
    # Also when nothing has to be restored.
    from rlplug.checkpoint.restore import restore_run

    return restore_run(record, runs_folder(), trust=trust)


def find_run(run: str, *, best_of_group: bool = True) -> Path:
    """The folder of a run in the runs folder, or else downloaded from MLflow.

    `rlplug.tracking.resolve` says how a run is named; of a group, this is the best one.
    """
    record = resolve_one(run, best_of_group=best_of_group)
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
