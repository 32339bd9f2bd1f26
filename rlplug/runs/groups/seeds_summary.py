"""What several seeds come to together: a table, means and IQMs with intervals, and a band."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.quantities import format_number
from rlplug.review.comparison import Interval, bootstrap, mean_interval
from rlplug.review.history import Series, aligned, curve_metric, fitting, markdown_row, table_width
from rlplug.review.plots import band_panel, draw, save
from rlplug.review.record import REGRET, RunRecord
from rlplug.runs.groups.seed_numbers import seeds_text
from rlplug.runs.groups.summary_run import SummaryRecord
from rlplug.tracking.details import read_history

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Measure", "SeedsSummary"]


@attrs.frozen
class Measure:
    """One number per seed, and what it is over all of them."""

    name: str
    """As in the names of metrics: `best_return`."""
    values: tuple[float, ...]
    mean: Interval
    iqm: Interval

    @classmethod
    def of(cls, name: str, values: Sequence[float]) -> Measure:
        """Of at least one value."""
        return cls(name, tuple(values), mean_interval(values), bootstrap(values))

    @property
    def label(self) -> str:
        """For people: `best return`."""
        return self.name.replace("_", " ")

    @property
    def cells(self) -> tuple[str, str, str]:
        """Label, mean and IQM, for tables."""
        return self.label, str(self.mean), str(self.iqm)

    def metrics(self) -> dict[str, float]:
        """The metrics of a summary: `summary/best_return_mean`, `summary/best_return_mean_low`."""
        return _bounds(f"summary/{self.name}_mean", self.mean) | _bounds(
            f"summary/{self.name}_iqm", self.iqm
        )


@attrs.frozen(kw_only=True)
class SeedsSummary:
    """The seeds of a group, with what was measured of those that have finished."""

    group: str
    runs: tuple[RunRecord, ...]
    """In the order of the seeds; those without a run have no id."""
    errors: Mapping[int, str] = attrs.field(factory=dict)
    """Seed → why it failed."""

    @property
    def finished(self) -> tuple[RunRecord, ...]:
        """The runs that measures are of: an unfinished one had fewer steps."""
        return tuple(run for run in self.runs if run.status == "FINISHED")

    @property
    def seeds(self) -> str:
        """The seeds, as `--seeds` takes them."""
        return seeds_text(tuple(run.about.seed for run in self.runs))

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What can be measured of every finished seed; what ranks the runs is the first."""
        measured = [_measured(run) for run in self.finished]
        return tuple(
            Measure.of(name, [values[name] for values in measured])
            for name in next(iter(measured), {})
            if all(name in values for values in measured)
        )

    @property
    def metrics(self) -> dict[str, float]:
        """Those of the summary run in MLflow."""
        metrics = {
            "summary/seeds": float(len(self.runs)),
            "summary/finished": float(len(self.finished)),
        }
        for index, measure in enumerate(self.measures):
            metrics |= measure.metrics()
            if not index:
                metrics |= _bounds("summary/iqm", measure.iqm)
        return metrics

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        measures = {
            measure.name: {
                "values": measure.values,
                "mean": attrs.asdict(measure.mean),
                "iqm": attrs.asdict(measure.iqm),
            }
            for measure in self.measures
        }
        return {
            "group": self.group,
            "seeds": [run.about.seed for run in self.runs],
            "finished": len(self.finished),
            "runs": [self.run_json(run) for run in self.runs],
            "measures": measures,
        }

    def run_json(self, run: RunRecord) -> dict[str, Any]:
        """One seed, as JSON values."""
        return {
            "seed": run.about.seed,
            "run_id": run.run_id,
            "status": run.status,
            "step": run.step,
            "best": run.best and {"step": run.best[0], "return_mean": run.best[1]},
            **{name: value for name, value in _measured(run).items() if name != "best_return"},
            "error": self.errors.get(run.about.seed, ""),
            "folder": "" if run.folder is None else str(run.folder),
        }

    def table(self) -> list[list[str]]:
        """Headings, and a row per seed; only columns that some seed has something in."""
        rows = [_cells(run) for run in self.runs]
        names = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
        return [[*names], *([row.get(name, "") for name in names] for row in rows)]

    def lines(self, width: int) -> Iterator[str]:
        """For the terminal: the table, then the measures."""
        yield from fitting(self.table(), width, ("steps", "run"))
        for seed, error in self.errors.items():
            yield f"seed {seed}: {error}"
        if not self.measures:
            return
        yield ""
        rows = [(self._count, "mean [95%]", "IQM [95%]")]
        rows += [measure.cells for measure in self.measures]
        if table_width(rows) <= width:
            yield from aligned(rows)
            return
        yield from aligned([row[:2] for row in rows])
        yield from aligned([("" if row is rows[0] else row[0], row[2]) for row in rows])

    def markdown(self) -> str:
        """The same for MLflow and notebooks."""
        lines = []
        if self.measures:
            rows = [("", "mean", "interquartile mean"), ("---", "---:", "---:")]
            rows += [measure.cells for measure in self.measures]
            lines += [f"{self._count}, with 95% bootstrap intervals:", ""]
            lines += [*map(markdown_row, rows), ""]
        headings, *cells = self.table()
        lines += map(markdown_row, [headings, ["---:"] * len(headings), *cells])
        if self.errors:
            lines += ["", *(f"- seed {seed}: {error}" for seed, error in self.errors.items())]
        return "\n".join(lines) + "\n"

    @property
    def _count(self) -> str:
        few, total = len(self.finished), len(self.runs)
        return f"{few} of {total} seeds" if few < total else f"{few} seeds"

    def figure(self) -> Figure:
        """The mean curve of the seeds that have finished, with its interval."""
        about = self.finished[0].about
        subtitle = (
            f"{about.algorithm} on {about.env}, {about.steps:,} environment steps, "
            f"seeds {self.seeds}, 95% intervals"
        )
        name, curves = self._curves()
        return draw([band_panel({about.algorithm: curves}, name)], self.group, subtitle)

    def _curves(self) -> tuple[str, list[Series]]:
        """The metric that tells how the runs went, and its curve in each."""
        histories = [read_history(run) for run in self.finished]
        has_regret = any(REGRET in history for history in histories)
        name = REGRET if has_regret else curve_metric(histories[0])
        return name, [history[name] for history in histories if name in history]

    def record(self) -> SummaryRecord:
        """What is kept of it, in files and in MLflow."""
        about = next(run.about for run in self.runs if run.run_id)
        return SummaryRecord(
            runs=self.runs,
            as_json=self.as_json(),
            markdown=self.markdown(),
            metrics=self.metrics,
            params=about.options,
            tags={"rlplug.seeds": self.seeds, "rlplug.options": about.shown_options},
            files={"band.png": self._draw},
        )

    def _draw(self, file: Path) -> None:
        save(self.figure(), file)


def _bounds(name: str, interval: Interval) -> dict[str, float]:
    return {
        name: interval.estimate,
        f"{name}_low": interval.low,
        f"{name}_high": interval.high,
    }


def _measured(run: RunRecord) -> dict[str, float]:
    """What one run is measured by: its evaluations, or else what it got while it trained."""
    latest = run.latest
    if run.best is not None:
        found = {
            "best_return": run.best[1],
            "final_return": latest.get("eval/return_mean", math.nan),
        }
    elif "rollout/return_mean" in latest:
        found = {"train_return": latest["rollout/return_mean"]}
    else:
        names = {"reward": "rollout/reward_mean", "regret": "rollout/regret_total"}
        found = {name: latest.get(metric, math.nan) for name, metric in names.items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _cells(run: RunRecord) -> dict[str, str]:
    measured = {name.replace("_", " "): format_number(x) for name, x in _measured(run).items()}
    if run.best is not None and "best return" in measured:
        measured["best return"] += f" @ {run.best[0]:,}"
    return {
        "seed": str(run.about.seed),
        "status": run.status,
        "steps": f"{run.step:,}",
        **measured,
        "run": run.short,
    }
