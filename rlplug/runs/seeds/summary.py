"""What several seeds come to together: a table, means and IQMs with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import attrs

from rlplug.quantities import format_number
from rlplug.review.record import RunRecord
from rlplug.review.statistics import Interval, bootstrap, mean_interval
from rlplug.review.text_table import aligned, fitting, markdown_row, table_width
from rlplug.runs.seeds.asked import seeds_text

__all__ = ["Measure", "Summary"]

_FINISHED = "FINISHED"


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

    def metrics(self, prefix: str) -> dict[str, float]:
        """The metrics of a summary: `best_return_mean`, `best_return_mean_low`, …"""
        found = {}
        for kind, value in (("mean", self.mean), ("iqm", self.iqm)):
            found[f"{prefix}{self.name}_{kind}"] = value.estimate
            found[f"{prefix}{self.name}_{kind}_low"] = value.low
            found[f"{prefix}{self.name}_{kind}_high"] = value.high
        return found


@attrs.frozen(kw_only=True)
class Summary:
    """The seeds of a group, with what was measured of those that have finished."""

    group: str
    runs: tuple[RunRecord, ...]
    """In the order of the seeds; those without a run have no id."""
    errors: Mapping[int, str] = attrs.field(factory=dict)
    """Seed → why it failed."""

    @property
    def finished(self) -> tuple[RunRecord, ...]:
        """The runs that measures are of: an unfinished one had fewer steps."""
        return tuple(run for run in self.runs if run.status == _FINISHED)

    @property
    def seeds(self) -> str:
        """The seeds, as `--seeds` takes them."""
        return seeds_text(tuple(run.about.seed for run in self.runs))

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What can be measured of every finished seed; what ranks the runs is the first."""
        measured = [_measured(run) for run in self.finished]
        names = (
            [name for name in measured[0] if all(name in one for one in measured)]
            if measured
            else []
        )
        return tuple(Measure.of(name, [one[name] for one in measured]) for name in names)

    @property
    def metrics(self) -> dict[str, float]:
        """Those of the summary run in MLflow."""
        metrics = {
            "summary/seeds": float(len(self.runs)),
            "summary/finished": float(len(self.finished)),
        }
        for index, one in enumerate(self.measures):
            metrics.update(one.metrics("summary/"))
            if not index:
                iqm = one.iqm
                both = {"": iqm.estimate, "_low": iqm.low, "_high": iqm.high}
                metrics.update({f"summary/iqm{end}": value for end, value in both.items()})
        return metrics

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "group": self.group,
            "seeds": [one.about.seed for one in self.runs],
            "finished": len(self.finished),
            "runs": [self.run_json(run) for run in self.runs],
            "measures": {
                one.name: {
                    "values": one.values,
                    "mean": attrs.asdict(one.mean),
                    "iqm": attrs.asdict(one.iqm),
                }
                for one in self.measures
            },
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

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, and a row per seed; only columns that some seed has something in."""
        rows = [_cells(run) for run in self.runs]
        names = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
        return list(names), [[row.get(name, "") for name in names] for row in rows]

    def lines(self, width: int) -> Iterator[str]:
        """For the terminal: the table, then the measures."""
        headings, rows = self.table()
        yield from fitting([headings, *rows], width, ("steps", "run"))
        for seed, error in self.errors.items():
            yield f"seed {seed}: {error}"
        if not self.measures:
            return
        few, total = len(self.finished), len(self.runs)
        heading = f"{few} of {total} seeds" if few < total else f"{few} seeds"
        yield ""
        cells = [(one.label, str(one.mean), str(one.iqm)) for one in self.measures]
        beside = [(heading, "mean [95%]", "IQM [95%]"), *cells]
        if table_width(beside) <= width:
            yield from aligned(beside)
            return
        yield from aligned([(heading, "mean [95%]"), *((one[0], one[1]) for one in cells)])
        yield from aligned([("", "IQM [95%]"), *((one[0], one[2]) for one in cells)])

    def html(self) -> str:
        """The measures as a table, for the report."""
        if not self.measures:
            return ""
        few, total = len(self.finished), len(self.runs)
        rows = [("", "mean", "interquartile mean")]
        rows += [(one.label, str(one.mean), str(one.iqm)) for one in self.measures]
        lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        errors = "".join(
            f"<p>seed {seed}: {escape(error)}</p>" for seed, error in self.errors.items()
        )
        said = f"{few} of {total} seeds, with 95% bootstrap intervals"
        return f"<h2>{said}</h2><table>{table}</table>{errors}"

    def markdown(self) -> str:
        """The same for MLflow."""
        lines = []
        if self.measures:
            few, total = len(self.finished), len(self.runs)
            lines += [f"Over {few} of {total} seeds, with 95% bootstrap intervals:", ""]
            lines += [
                markdown_row(["", "mean", "interquartile mean"]),
                markdown_row(["---", "---:", "---:"]),
            ]
            lines += [
                markdown_row([one.label, str(one.mean), str(one.iqm)]) for one in self.measures
            ]
            lines.append("")
        headings, rows = self.table()
        lines += [
            markdown_row(headings),
            markdown_row(["---:"] * len(headings)),
            *map(markdown_row, rows),
        ]
        if self.errors:
            lines += ["", *(f"- seed {seed}: {error}" for seed, error in self.errors.items())]
        return "\n".join(lines) + "\n"


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
