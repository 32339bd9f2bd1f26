"""Find runs by what a person calls them: one resolver for every command."""

from __future__ import annotations

import difflib
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.review.record import RunAbout, RunRecord
from rlplug.tracking.location import (
    RunFolder,
    runs_folder,
    runs_in,
    tracking_uri,
    without_secrets,
)
from rlplug.tracking.recorded import read_record
from rlplug.tracking.search import is_shared, merged, tracked_runs

__all__ = ["best_of", "resolve", "resolve_one", "split_checkpoint"]

BEST = "best:"
LAST = "last"
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
    known = _Known(runs_folder() if root is None else root.absolute())
    found = known.find(known.without_checkpoint(text))
    if not found:
        raise known.unknown(text)
    return found


def resolve_one(text: str, root: Path | None = None, *, best_of_group: bool = True) -> RunRecord:
    """The run that is meant; of a group, the best one, which is said, or an error."""
    found = resolve(text, root)
    if len(found) == 1:
        return found[0]
    if not best_of_group:
        raise _ambiguous(f"{text!r} is a group of {len(found)} runs:", found)
    best = best_of(found)
    if best is None:
        raise _ambiguous(f"none of the {len(found)} runs of the group {text!r} has a score:", found)
    _LOG.warning(
        "rlplug: %s is a group of %s runs; this is the best: %s (%s).",
        text,
        len(found),
        best.run_id,
        best.name,
    )
    return best


def split_checkpoint(text: str, root: Path | None = None) -> tuple[str, str]:
    """A run and what follows its last `@`: a step, `best` or `last`; empty if there is none.

    A run without a name is refused. `~` of a folder is replaced by a home folder.
    """
    if text.startswith("~") and "/" in text:
        text = str(absolute_path(text, "the folder of a run"))
    run, at, after = text.rpartition("@")
    if not (at and run) or not (after.isdecimal() or after in ("best", LAST)):
        run, after = text, ""
    folder = runs_folder() if root is None else root
    if after and (Path(text).exists() or any(one.run_name == text for one in runs_in(folder))):
        run, after = text, ""
    if not run.removeprefix(BEST).strip():
        # An unset variable of a script; most runs have no group, and no other id in MLflow.
        raise RequestError(f"{text!r} names no run: the value is empty.", "try: rlplug runs")
    return run, after


def best_of(runs: Iterable[RunRecord]) -> RunRecord | None:
    """The run with the highest score; None if none has one."""
    scored = [run for run in runs if run.score is not None and not math.isnan(run.score)]
    # Of equal ones, the one that was given first.
    return max(scored, key=lambda run: run.score or 0.0, default=None)


class _Known:
    """The runs that can be found: those of a runs folder, and those in MLflow."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = runs_in(root)

    def without_checkpoint(self, text: str) -> str:
        return split_checkpoint(text, self.root)[0]

    def find(self, text: str) -> list[RunRecord]:
        folder = _in_folder(Path(text))
        if folder is not None:
            return [folder]
        if text == LAST:
            return self._last()
        if text.startswith(BEST):
            return self._best(text.removeprefix(BEST))
        ways: tuple[Callable[[RunFolder], bool], ...] = (
            lambda run: text in (run.run_id, run.tracked_id),
            lambda run: run.run_name == text,
            lambda run: len(text) >= SHORTEST and _begins(run, text),
        )
        for way in ways:
            found = [run for run in self.runs if way(run)]
            if len(found) > 1:
                records = [read_record(run) for run in found]
                raise _ambiguous(f"{text!r} matches {len(found)} runs:", records)
            if found:
                return [read_record(found[0])]
        return self._group(text) or self._tracked(text)

    def unknown(self, text: str) -> RequestError:
        """Near runs, nearest first, else the newest."""
        run = self.without_checkpoint(text)
        near = self._near(run)
        if not near and os.path.exists(text):  # a name may be too long for a path
            kind = "folder" if Path(text).is_dir() else "file"
            return RequestError(
                f"the {kind} {text!r} is neither a run nor a checkpoint of rlplug.",
                "a run has a run.json, a checkpoint a manifest.json",
                "see: rlplug runs",
            )
        guess = f" Did you mean {near[0]!r}?" if near else ""
        like = [one for word in near for one in self.runs if word in (one.run_id, one.run_name)]
        shown = list(dict.fromkeys(f"{one.run_id}  {one.run_name}" for one in like or self.runs))
        return RequestError(
            f"there is no run {text!r} in {self.root}, nor in MLflow.{guess}",
            *(shown[:_SHOWN] or ["there are no runs yet"]),
            "or set RLPLUG_HOME or MLFLOW_TRACKING_URI to where it is recorded",
        )

    def _near(self, run: str) -> list[str]:
        """The ids, names and groups, or after `best:` the environments, that are like a word."""
        if run.startswith(BEST):
            words = [f"{BEST}{one.about.env}" for one in self.runs]
        else:
            words = [word for one in self.runs for word in (one.run_id, one.run_name)]
            words += [one.about.group for one in self.runs]
        lowered = {word.lower(): word for word in words if word}
        near = difflib.get_close_matches(run.lower(), lowered, _SHOWN)
        return [lowered[word] for word in near]

    @property
    def _uri(self) -> str:
        return tracking_uri("", self.root)

    def _last(self) -> list[RunRecord]:
        if self.runs:
            return [read_record(self.runs[0])]
        return tracked_runs(self._uri, most=1)

    def _best(self, where: str) -> list[RunRecord]:
        for kind, tag in (("env", "rlplug.env"), ("group", "rlplug.group")):
            best = best_of(self._all(kind, tag, where))
            if best is not None:
                return [best]
        return []

    def _group(self, name: str) -> list[RunRecord]:
        return sorted(self._all("group", "rlplug.group", name), key=lambda run: run.about.seed)

    def _all(self, kind: str, tag: str, value: str) -> list[RunRecord]:
        """All runs of a group or an environment."""
        here = [read_record(run) for run in self.runs if getattr(run.about, kind) == value]
        if (here and not is_shared(self._uri)) or not value or "'" in value:
            return here
        try:
            return merged(here, tracked_runs(self._uri, f"tags.`{tag}` = '{value}'"))
        except RequestError as error:
            if not here:
                raise
            _LOG.warning("rlplug: %s These are the runs in %s alone.", error.message, self.root)
            return here

    def _tracked(self, text: str) -> list[RunRecord]:
        """A run that only MLflow has."""
        if "'" in text:
            return []
        conditions = [f"attributes.run_id = '{text}'", f"attributes.run_name = '{text}'"]
        if re.fullmatch(r"[0-9a-f]{4,31}", text):
            conditions.append(f"attributes.run_id LIKE '{text}%'")
        for condition in conditions:
            found = tracked_runs(self._uri, condition)
            if len(found) > 1:
                where = without_secrets(self._uri)
                raise _ambiguous(f"{text!r} matches {len(found)} runs in MLflow at {where}:", found)
            if found:
                return found
        return []


def _begins(run: RunFolder, text: str) -> bool:
    return run.run_id.startswith(text) or run.tracked_id.startswith(text)


def _in_folder(path: Path) -> RunRecord | None:
    """The run of a folder; a downloaded one has no `run.json`, an early killed no checkpoints."""
    if not (path.is_dir() and ((path / "checkpoints").is_dir() or (path / "run.json").is_file())):
        return None
    run = RunFolder.read(path)
    if run is not None:
        return read_record(run)
    name = path.absolute().name
    return RunRecord(run_id=name, name=name, about=RunAbout(), status="unknown", folder=path)


def _ambiguous(message: str, runs: Sequence[RunRecord]) -> RequestError:
    more = len(runs) - _SHOWN
    return RequestError(
        message,
        *(f"{run.run_id}  {run.name}" for run in runs[:_SHOWN]),
        *([f"and {more:,} more"] if more > 0 else []),
        "try: the full id of one",
    )
