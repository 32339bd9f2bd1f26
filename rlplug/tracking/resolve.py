"""Find runs by what a person calls them: one resolver for every command."""

from __future__ import annotations

import difflib
import logging
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.review.record import RunAbout, RunRecord, ranking
from rlplug.tracking.location import RUN, RunFolder, runs_folder, runs_in, tracking_uri
from rlplug.tracking.reading import read_record, tracked_runs, with_tracked

BEST, LAST = "best:", "last"
SHORTEST = 4
"""How much of an id must be given at least."""

_LOG = logging.getLogger("rlplug")
_SHOWN = 5


def resolve(text: str, root: Path | None = None) -> list[RunRecord]:
    """The runs that are meant: one, or all of a group, by seed.

    By id, the beginning of an id, name, folder, `last` for the newest, `best:ENV` or
    `best:GROUP` for the one with the best score, or the name of a group; what follows `@` is about
    a checkpoint. The runs folder answers first; MLflow is asked for what is not in it, and, where
    it is a server, for the other runs of a group or an environment.
    """
    root = runs_folder() if root is None else root.absolute()
    name, runs = split_checkpoint(text, root)[0], runs_in(root)
    folder = Path(name)
    # A downloaded run has no `run.json`, one that was killed early no checkpoints.
    if os.path.isdir(folder / "checkpoints") or os.path.isfile(folder / RUN):
        run, own = RunFolder.read(folder), folder.absolute().name
        unknown = RunRecord(run_id=own, name=own, about=RunAbout(), status="unknown", folder=folder)
        return [unknown if run is None else read_record(run)]
    uri = tracking_uri("", root)
    if name == LAST:
        known = [read_record(runs[0])] if runs else tracked_runs(uri, most=1)
    elif name.startswith(BEST):
        of = name.removeprefix(BEST)
        best = best_of(_all(runs, root, "env", of)) or best_of(_all(runs, root, "group", of))
        known = [] if best is None else [best]
    else:
        known = _named(name, runs) or sorted(
            _all(runs, root, "group", name), key=lambda run: run.about.seed
        )
        begins = re.fullmatch(r"[0-9a-f]{4,32}", name)
        ways = [f"id LIKE '{name}%'"] if begins else []
        for way in [*ways, f"name = '{name}'"] if "'" not in name else ():
            known = known or _only(tracked_runs(uri, f"attributes.run_{way}"), name)
    if not known:
        raise _unknown(text, name, runs, root)
    return known


def resolve_one(text: str, root: Path | None = None, *, best_of_group: bool = True) -> RunRecord:
    """The run that is meant; of a group, the best one, which is said, or an error."""
    runs = resolve(text, root)
    if len(runs) == 1:
        return runs[0]
    best = best_of(runs)
    if not best_of_group:
        raise _ambiguous(f"{text!r} is a group of {len(runs)} runs:", runs)
    if best is None:
        raise _ambiguous(f"none of the {len(runs)} runs of the group {text!r} has a score:", runs)
    said = "rlplug: %s is a group of %s runs; this is the best: %s (%s)."
    _LOG.warning(said, text, len(runs), best.run_id, best.name)
    return best


def split_checkpoint(text: str, root: Path | None = None) -> tuple[str, str]:
    """A run and what follows its last `@`: a step, `best` or `last`; empty if there is none.

    A run without a name is refused. `~` of a folder is replaced by a home folder.
    """
    if text.startswith("~") and "/" in text:
        text = str(absolute_path(text, "the folder of a run"))
    run, _, after = text.rpartition("@")
    folder = runs_folder() if root is None else root
    if (
        not run
        or not (after.isdecimal() or after in ("best", LAST))
        or Path(text).exists()
        or any(one.run_name == text for one in runs_in(folder))
    ):
        run, after = text, ""
    if not run.removeprefix(BEST).strip():
        # An unset variable of a script; most runs have no group, and no other id in MLflow.
        raise RequestError(f"{text!r} names no run: the value is empty.", "try: rlplug runs")
    return run, after


def best_of(runs: Iterable[RunRecord]) -> RunRecord | None:
    """The first run by `ranking`; None if none has a score."""
    scored = [run for run in runs if run.score is not None and not math.isnan(run.score)]
    return max(scored, key=ranking, default=None)


def _named(name: str, runs: Sequence[RunFolder]) -> list[RunRecord]:
    """The run of a folder with this id, else name, else beginning of an id."""
    exact = [run for run in runs if name in (run.run_id, run.tracked_id)]
    exact = exact or [run for run in runs if run.run_name == name]
    if not exact and len(name) >= SHORTEST:
        ids = ((run, (run.run_id, run.tracked_id)) for run in runs)
        exact = [run for run, both in ids if any(one.startswith(name) for one in both)]
    return _only([read_record(run) for run in exact], name)


def _all(runs: Sequence[RunFolder], root: Path, kind: str, value: str) -> list[RunRecord]:
    """All runs of an environment (`env`) or a group."""
    here = [read_record(run) for run in runs if getattr(run.about, kind) == value]
    if not value or "'" in value:
        return here
    condition = f"tags.`rlplug.{kind}` = '{value}'"
    return with_tracked(here, root, condition, lambda line: _LOG.warning("rlplug: %s", line))


def _only(runs: list[RunRecord], text: str) -> list[RunRecord]:
    if len(runs) > 1:
        raise _ambiguous(f"{text!r} matches {len(runs)} runs:", runs)
    return runs


def _unknown(text: str, run: str, runs: Sequence[RunFolder], root: Path) -> RequestError:
    """Near runs, nearest first, else the newest."""
    words = [word for one in runs for word in (one.run_id, one.run_name, one.about.group)]
    if run.startswith(BEST):
        words = [f"{BEST}{one.about.env}" for one in runs]
    near = difflib.get_close_matches(run, words, _SHOWN)
    if not near and os.path.exists(text):  # a name may be too long for a path
        return RequestError(
            f"{text!r} is neither a run nor a checkpoint of rlplug.",
            "a run has a run.json, a checkpoint a manifest.json",
            "see: rlplug runs",
        )
    guess = f" Did you mean {near[0]!r}?" if near else ""
    like = [one for word in near for one in runs if word in (one.run_id, one.run_name)]
    shown = list(dict.fromkeys(f"{one.run_id}  {one.run_name}" for one in like or runs))
    return RequestError(
        f"there is no run {text!r} in {root}, nor in MLflow.{guess}",
        *(shown[:_SHOWN] or ["there are no runs yet"]),
        "or set RLPLUG_HOME or MLFLOW_TRACKING_URI to where it is recorded",
    )


def _ambiguous(message: str, runs: Sequence[RunRecord]) -> RequestError:
    more = len(runs) - _SHOWN
    return RequestError(
        message,
        *(f"{run.run_id}  {run.name}" for run in runs[:_SHOWN]),
        *([f"and {more:,} more"] if more > 0 else []),
        "try: the full id of one",
    )
