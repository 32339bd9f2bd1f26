"""Recorded runs as data, `rlplug.runs(env="CartPole-v1")`, and the same run again."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from rlplug.errors import RequestError
from rlplug.quantities import format_number
from rlplug.review.record import RunRecord, select, sort
from rlplug.tracking.location import runs_folder, tracking_uri
from rlplug.tracking.reading import known_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rlplug.review.history import History
    from rlplug.runs.evaluate import Evaluated
    from rlplug.runs.request import Request
    from rlplug.serving import Policy
    from rlplug.tracking.provenance import Likeness

__all__ = ["RecordedRun", "like_run", "plot_run", "runs"]

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
    chosen = select(known, env=env, algo=algo, group=group, status=statuses, since=since)
    return [RecordedRun.of(run) for run in sort(chosen, sort_by)]


@attrs.frozen(kw_only=True, repr=False)
class RecordedRun(RunRecord):
    """A recorded run, whose metrics and policy can be read."""

    @classmethod
    def of(cls, run: RunRecord) -> RecordedRun:
        return cls(**{one.name: getattr(run, one.name) for one in attrs.fields(RunRecord)})

    def history(self, *, frame: bool = False) -> Any:
        """Metric → its steps and values as arrays; with `frame`, a pandas DataFrame by step."""
        from rlplug.review.history import frame_of
        from rlplug.tracking.details import read_history

        history = read_history(self)
        return frame_of(history) if frame else history

    def plot(self) -> Figure:
        """The learning curve."""
        about = self.about
        what = f"{about.algorithm} on {about.env}, seed {about.seed}"
        return plot_run(self.history(), self.name, f"{what}, {self.step:,} environment steps")

    def load(self, **options: Any) -> Policy:
        """The policy of the best checkpoint; options of `rlplug.load`."""
        from rlplug.runs.loading import load

        return load(self.run_id if self.folder is None else self.folder, **options)

    def evaluate(self, **options: Any) -> Evaluated:
        """Greedy episodes with the policy of the best checkpoint; options of `rlplug.evaluate`."""
        from rlplug.runs.evaluate import evaluate

        return evaluate(self.run_id if self.folder is None else self.folder, **options)

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


def like_run(run: str, given: Request, *, trust: bool) -> tuple[Request, Likeness]:
    """A recorded run again: the request for its options, and what the new run is compared with.

    Without `trust`, that of somebody else is refused if its options name code to import.
    """
    from rlplug.checkpoint.trust import OF_RUN, admit
    from rlplug.review.provenance import PROVENANCE, read_provenance
    from rlplug.tracking.provenance import Likeness
    from rlplug.tracking.resolve import resolve_one
    from rlplug.tracking.store import fetch_file

    record = resolve_one(run, best_of_group=False)
    folder = record.folder
    if folder is None:
        root = runs_folder()
        uri = tracking_uri("", root)
        for name in (PROVENANCE, "config.toml"):
            file = fetch_file(record.run_id, uri, f"config/{name}", root)
            folder = None if file is None else file.parent
    named = f"run {record.run_id} ({record.name})"
    provenance = None if folder is None else read_provenance(folder)
    if folder is None or provenance is None or not provenance.plugins:
        raise RequestError(
            f"{named} has no record of its plugins and options.",
            "try: rlplug run --config config.toml, from its artifacts",
        )
    admit(folder, OF_RUN, trust=trust)
    if not provenance.rerunnable:
        raise RequestError(
            f"{named} was started from Python with its own classes or environment.",
            "try: run that program again",
        )
    # All that a preset sets is in the file; it may have changed since.
    flags: dict[str, Mapping[str, Any]] = {**given.flags}
    flags["run"] = {"preset": "", **flags.get("run", {})}
    if all(setting.key != "tracking.run_name" for setting in given.settings):
        flags["tracking"] = {"run_name": "", **flags.get("tracking", {})}
    request = attrs.evolve(given, config=folder / "config.toml", flags=flags)
    return request, Likeness(run_id=record.run_id, provenance=provenance)
