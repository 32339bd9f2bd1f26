"""What several seeds come to together: a table, means and IQMs with intervals, and a band."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.quantities import format_number
from rlplug.review.comparison import Interval, bootstrap, mean_interval
from rlplug.review.history import aligned, curve_metric, fitting, markdown_row, table_width
from rlplug.review.plots import band_panel, draw, save
from rlplug.review.record import REGRET, RunRecord
from rlplug.runs.groups.group import SummaryRecord
from rlplug.runs.groups.seed_numbers import seeds_text
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
    def cells(self) -> tuple[str, str, str]:
        """Label, mean and IQM, for tables."""
        return self.name.replace("_", " "), str(self.mean), str(self.iqm)


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

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        runs = [
            {
                "seed": run.about.seed,
                "run_id": run.run_id,
                "status": run.status,
                "step": run.step,
                **_measured(run),
                "best": run.best and {"step": run.best[0], "return_mean": run.best[1]},
                "error": self.errors.get(run.about.seed, ""),
                "folder": "" if run.folder is None else str(run.folder),
            }
            for run in self.runs
        ]
        measures = {one.name: attrs.asdict(one) for one in self.measures}
        seeds = [run.about.seed for run in self.runs]
        counts = {"seeds": seeds, "finished": len(self.finished)}
        return {"group": self.group, **counts, "runs": runs, "measures": measures}

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
        else:
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
        lines += ["", *(f"- seed {seed}: {error}" for seed, error in self.errors.items())]
        return "\n".join(lines).rstrip() + "\n"

    @property
    def _count(self) -> str:
        few, total = len(self.finished), len(self.runs)
        return f"{few} of {total} seeds" if few < total else f"{few} seeds"

    def figure(self) -> Figure:
        """The mean curve of the seeds that have finished, with its interval."""
        about = self.finished[0].about
        histories = [read_history(run) for run in self.finished]
        has_regret = any(REGRET in history for history in histories)
        name = REGRET if has_regret else curve_metric(histories[0])
        curves = [history[name] for history in histories if name in history]
        steps = f"{about.steps:,} environment steps"
        what = f"{about.algorithm} on {about.env}, {steps}, seeds {self.seeds}, 95% intervals"
        return draw([band_panel({about.algorithm: curves}, name)], self.group, what)

    def record(self) -> SummaryRecord:
        """What is kept of it, in files and in MLflow."""
        about = next(run.about for run in self.runs if run.run_id)
        metrics = {"summary/seeds": len(self.runs), "summary/finished": len(self.finished)}
        named: dict[str, Interval] = {}
        for measure in reversed(self.measures):
            named |= {f"{measure.name}_mean": measure.mean, f"{measure.name}_iqm": measure.iqm}
            named["iqm"] = measure.iqm
        numbers: dict[str, float] = {name: float(count) for name, count in metrics.items()}
        for name, interval in named.items():
            numbers[f"summary/{name}"] = interval.estimate
            numbers[f"summary/{name}_low"] = interval.low
            numbers[f"summary/{name}_high"] = interval.high
        return SummaryRecord(
            runs=self.runs,
            as_json=self.as_json(),
            markdown=self.markdown(),
            metrics=numbers,
            params=about.options,
            tags={"rlplug.seeds": self.seeds, "rlplug.options": about.shown_options},
            files={"band.png": self._draw},
        )

    def _draw(self, file: Path) -> None:
        save(self.figure(), file)


def _measured(run: RunRecord) -> dict[str, float]:
    """What one run is measured by: its evaluations, or else what it got while it trained."""
    latest = run.latest
    names = {"reward": "rollout/reward_mean", "regret": "rollout/regret_total"}
    if run.best is not None:
        names = {"final_return": "eval/return_mean"}
    elif "rollout/return_mean" in latest:
        names = {"train_return": "rollout/return_mean"}
    best = {} if run.best is None else {"best_return": run.best[1]}
    found = best | {name: latest.get(metric, math.nan) for name, metric in names.items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _cells(run: RunRecord) -> dict[str, str]:
    measured = {name.replace("_", " "): format_number(x) for name, x in _measured(run).items()}
    if run.best is not None and "best return" in measured:
        measured["best return"] += f" @ {run.best[0]:,}"
    own = {"seed": str(run.about.seed), "status": run.status, "steps": f"{run.step:,}"}
    return {**own, **measured, "run": run.short}
