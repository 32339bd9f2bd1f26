"""Recorded runs as data: `rlplug.runs(env="CartPole-v1")`."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import attrs

from rlplug.quantities import format_number
from rlplug.review.record import RunRecord, select, sort
from rlplug.tracking.location import runs_folder
from rlplug.tracking.search import known_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from rlplug.review.history import History
    from rlplug.serving import Policy

__all__ = ["RecordedRun", "plot_run", "runs"]

_LOG = logging.getLogger("rlplug")


def runs(
    *,
    env: str = "",
    algo: str = "",
    group: str = "",
    status: str | Collection[str] = (),
    since: datetime | None = None,
    sort_by: Literal["started", "best", "name", "step"] = "started",
    root: str | Path | None = None,
) -> list[RecordedRun]:
    """The runs in the runs folder, and those of a tracking server, newest first.

    Texts may have `*`, and case does not matter: `runs(env="CartPole*", status="finished")`.
    `sort_by="best"` has the best first in each environment.
    """
    folder = runs_folder(None if root is None else Path(root))
    known = known_runs(folder, lambda message: _LOG.warning("rlplug: %s", message))
    statuses = (status,) if isinstance(status, str) and status else status
    found = select(known, env=env, algo=algo, group=group, status=statuses, since=since)
    return [RecordedRun.of(run) for run in sort(found, sort_by)]


@attrs.frozen(kw_only=True, repr=False)
class RecordedRun(RunRecord):
    """A recorded run, whose metrics and policy can be read."""

    @classmethod
    def of(cls, run: RunRecord) -> RecordedRun:
        return cls(**{one.name: getattr(run, one.name) for one in attrs.fields(RunRecord)})

    @overload
    def history(self, *, frame: Literal[False] = False) -> History: ...
    @overload
    def history(self, *, frame: Literal[True]) -> DataFrame: ...
    def history(self, *, frame: bool = False) -> History | DataFrame:
        """Metric → its steps and values as arrays; with `frame`, a pandas DataFrame by step."""
        from rlplug.review.history import frame_of
        from rlplug.tracking.details import read_history

        found = read_history(self)
        return frame_of(found) if frame else found

    def plot(self) -> Figure:
        """The learning curve."""
        return plot_run(self.history(), self.name, _subtitle(self))

    def load(self, **options: Any) -> Policy:
        """The policy of the best checkpoint; `rlplug.load` tells the options."""
        from rlplug.runs.loading import load

        return load(self.run_id if self.folder is None else self.folder, **options)

    def __repr__(self) -> str:
        best = "" if self.best is None else f", best {format_number(self.best[1])}"
        at = "" if self.best is None else f" at step {self.best[0]:,}"
        status = f"{self.shown_status} at step {self.step:,}"
        return f"<run {self.short} {self.name}: {status}{best}{at}>"

    def _repr_html_(self) -> str:
        from rlplug.review.plots import png_of
        from rlplug.review.report import notebook_html

        rows = {"status": f"{self.shown_status} at step {self.step:,}"}
        if self.best is not None:
            rows["best"] = f"{format_number(self.best[1])} at step {self.best[0]:,}"
        if self.headline is not None:
            rows["last"] = f"{format_number(self.headline[1])} ({self.headline[0]})"
        rows["options"] = self.about.shown_options
        rows["run"] = self.run_id
        rows["folder"] = "" if self.folder is None else str(self.folder)
        return notebook_html(self.name, rows, png_of(self.plot()))


def plot_run(history: History, title: str, subtitle: str) -> Figure:
    """The learning curve as a figure of matplotlib, which notebooks show."""
    from rlplug.review.plots import curve_panels, draw, png_of

    figure = draw(curve_panels(history), title, subtitle)
    # A figure that pyplot does not know is shown by notebooks only if it has this method.
    figure._repr_png_ = partial(png_of, figure)  # type: ignore[attr-defined] # looked up by IPython
    return figure


def _subtitle(run: RunRecord) -> str:
    about = run.about
    return f"{about.algorithm} on {about.env}, seed {about.seed}, {run.step:,} environment steps"
