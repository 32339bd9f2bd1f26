"""Find a checkpoint by the id or name of a run, or by its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlplug.checkpoint.manifest import (
    STEPS,
    best_in,
    checkpoints_in,
    is_checkpoint,
    read_manifest,
    verify,
)
from rlplug.errors import RequestError, did_you_mean
from rlplug.tracking.artifacts import fetch_run
from rlplug.tracking.location import runs_folder, runs_in, tracking_uri

__all__ = ["find_checkpoint", "find_run"]

_SHOWN = 5


def find_checkpoint(run: str, which: str = "best") -> Path:
    """The `best` or `last` checkpoint of a run, that of a step, or a folder; verified.

    `best` is that of the best evaluation, or the last one if there were no evaluations; one whose
    weights are not finite never is. `RUN@STEP` is the one at a step of the run, `RUN@last` the
    last one.
    """
    run, which = _apart(run, which)
    if which not in ("best", "last") and not which.isdecimal():
        chosen = Path(which)
    elif is_checkpoint(Path(run)) or (Path(run).is_dir() and Path(run).match(STEPS)):
        # The second is an incomplete one, of which `verify` says what is missing.
        chosen = Path(run)
    else:
        folder = find_run(run)
        found = checkpoints_in(folder / "checkpoints")
        if not found:
            raise RequestError(
                f"run {run!r} has no checkpoint in {folder}.",
                "try: a run that saved a checkpoint",
            )
        if which.isdecimal():
            chosen = _at_step(run, int(which), found)
        else:
            chosen = found[-1] if which == "last" else _best(run, found)
    verify(chosen)
    return chosen


def _apart(run: str, which: str) -> tuple[str, str]:
    """A run, and what follows its last @, unless that is part of a name."""
    name, at, after = run.rpartition("@")
    if not at or not (after.isdecimal() or after in ("best", "last")) or Path(run).exists():
        return run, which
    if any(one.run_name == run for one in runs_in(runs_folder())):
        return run, which
    return name, after


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


def find_run(run: str) -> Path:
    """The folder of a run in the runs folder, or else downloaded from MLflow.

    By its id, the beginning of its id, its name, or `last` for the newest.
    """
    folder = Path(run)
    # A fetched one has no run.json, and one that was killed early no checkpoints.
    if (folder / "checkpoints").is_dir() or (folder / "run.json").is_file():
        return folder
    root = runs_folder()
    known = {one.run_id: one.run_name for one in runs_in(root)}
    if run == "last" and known:
        return root / "work" / next(iter(known))
    if run in known:
        return root / "work" / run
    named = [run_id for run_id, name in known.items() if name == run]
    begun = [run_id for run_id in known if len(run) >= 4 and run_id.startswith(run)]
    for candidates in (named, begun):
        if len(candidates) == 1:
            return root / "work" / candidates[0]
        if candidates:
            raise RequestError(
                f"{run!r} matches {len(candidates)} runs:",
                *(f"{run_id}  {known[run_id]}" for run_id in candidates[:_SHOWN]),
                "try: the full id of one",
            )
    fetched = fetch_run(run, tracking_uri("", root), root)
    if fetched is not None:
        return fetched
    guess = did_you_mean(run, [*known, *known.values()], sentence=True)
    raise RequestError(
        f"there is no run {run!r} in {root}, nor in MLflow. {guess}".rstrip(),
        *_listed(known),
        "or set RLPLUG_HOME or MLFLOW_TRACKING_URI to where it is recorded",
    )


def _listed(known: dict[str, str]) -> list[str]:
    newest = list(known.items())[:_SHOWN]
    return [f"{run_id}  {name}" for run_id, name in newest] or ["there are no runs yet"]
