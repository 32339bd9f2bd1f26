"""What a study comes to: its trials, the best of them, and which options mattered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.toml import toml_value
from rlplug.durable import write_durably
from rlplug.quantities import format_number
from rlplug.review.history import aligned, fitting, markdown_row
from rlplug.review.record import REWARD, RunRecord
from rlplug.runs.groups.group import CONFIG, SummaryRecord
from rlplug.runs.groups.study import Proposal

__all__ = ["StudySummary", "TrialRow"]

_WORDS = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "interrupted"}

_SHOWN = 15
"""Trials in the terminal, the best first; the others are in the files."""


@attrs.frozen(kw_only=True)
class TrialRow:
    """One trial, with the runs of its seeds."""

    proposal: Proposal
    runs: tuple[RunRecord, ...]
    error: str = ""
    """Why it failed."""

    @property
    def status(self) -> str:
        """For people."""
        return _WORDS[self.proposal.status]

    @property
    def step(self) -> int:
        return max((run.step for run in self.runs), default=0)

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "trial": self.proposal.number,
            "status": self.status,
            "score": self.proposal.score,
            "options": dict(self.proposal.values),
            "runs": {str(run.about.seed): run.run_id for run in self.runs},
            "step": self.step,
            "error": self.error,
        }


@attrs.frozen(kw_only=True)
class StudySummary:
    """A study so far."""

    study: str
    metric: str
    """The metric that is optimized; empty: what ranks the runs."""
    maximizes: bool
    trials: tuple[TrialRow, ...]
    """By number."""
    importances: Mapping[str, float]
    options: Mapping[str, str] = attrs.field(factory=dict)
    """All that its results depend on."""

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The runs of all trials."""
        return tuple(run for one in self.trials for run in one.runs)

    @property
    def ranked(self) -> list[TrialRow]:
        """The best first; then those that were pruned, and those without a result."""
        order = ("finished", "pruned", "failed", "interrupted")

        def rank(one: TrialRow) -> tuple[int, float, int]:
            score = math.inf if one.proposal.score is None else one.proposal.score
            return order.index(one.status), -score if self.maximizes else score, one.proposal.number

        return sorted(self.trials, key=rank)

    @property
    def best(self) -> TrialRow | None:
        """The best of those that have finished; None without one."""
        return next((one for one in self.ranked if one.status == "finished"), None)

    @property
    def label(self) -> str:
        """What scores are called."""
        if self.metric:
            return self.metric
        if any(run.best is not None for run in self.runs):
            return "best return"
        name = next((run.headline[0] for run in self.runs if run.headline is not None), "score")
        return "mean reward" if name == REWARD else name

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "study": self.study,
            "metric": self.label,
            "direction": "maximize" if self.maximizes else "minimize",
            "best": None if self.best is None else self.best.as_json(),
            "importances": dict(self.importances),
            "trials": [one.as_json() for one in self.trials],
        }

    def lines(self, width: int) -> Iterator[str]:
        """For the terminal: the best trials, and which options mattered."""
        ranked = self.ranked
        yield from fitting(self._table(ranked[:_SHOWN]), width, ("steps", "run", "status"))
        if ranked[_SHOWN:]:
            yield f"… {len(ranked) - _SHOWN} more in summary.md"
        for one in self.trials:
            if one.error:
                yield f"trial {one.proposal.number}: {one.error}"
        yield from ("", self.counts)
        if self.importances:
            shares = ((name, f"{one:.0%}") for name, one in self.importances.items())
            yield from ("", *aligned([("option", "importance"), *shares]))
        if self.best is not None:
            yield from ("", *self._best_lines())

    @property
    def counts(self) -> str:
        """`20 trials: 12 finished, 8 pruned`."""
        counts = Counter(one.status for one in self.trials)
        parts = (f"{counts[word]} {word}" for word in _WORDS.values() if counts[word])
        return f"{len(self.trials)} trial{'s' if self.trials[1:] else ''}: {', '.join(parts)}"

    def _best_lines(self) -> Iterator[str]:
        assert self.best is not None
        proposal = self.best.proposal
        yield f"best: trial {proposal.number}, {self.label} {format_number(proposal.score)}"
        yield from (f"  {name} = {toml_value(x)}" for name, x in proposal.values.items())

    def markdown(self) -> str:
        """The same for MLflow and `summary.md`."""
        lines = [] if self.best is None else ["```toml", *self._best_lines(), "```", ""]
        if self.best is not None:
            lines[1] = f"# {lines[1]}"
        lines += [f"{self.counts}.", ""]
        if self.importances:
            lines += [markdown_row(("option", "importance")), markdown_row(("---", "---:"))]
            lines += [markdown_row((name, f"{one:.0%}")) for name, one in self.importances.items()]
            lines.append("")
        headings, *rows = self._table(self.ranked)
        lines += [markdown_row(headings), markdown_row(["---:"] * len(headings))]
        lines += [*map(markdown_row, rows), ""]
        lines += [f"- trial {one.proposal.number}: {one.error}" for one in self.trials if one.error]
        return "\n".join(lines).rstrip() + "\n"

    def record(self) -> SummaryRecord:
        """What is kept of it, in files and in MLflow."""
        counts = Counter(one.status for one in self.trials)
        metrics = {"summary/trials": float(len(self.trials))}
        metrics |= {f"summary/{word}": float(counts[word]) for word in _WORDS.values()}
        metrics |= {f"importance/{name}": one for name, one in self.importances.items()}
        best = self.best
        if best is not None and best.proposal.score is not None:
            metrics["summary/best"] = best.proposal.score
            metrics["summary/best_trial"] = float(best.proposal.number)
        scores = {
            one.proposal.number: one.proposal.score
            for one in self.trials
            if one.status == "finished" and one.proposal.score is not None
        }
        best_so_far: dict[int, float] = {}
        for number, score in scores.items():
            before = next(reversed(best_so_far.values()), score)
            best_so_far[number] = max(before, score) if self.maximizes else min(before, score)
        values = {} if best is None else best.proposal.values
        tags = {"rlplug.options": " ".join(f"{name}={value}" for name, value in values.items())}
        return SummaryRecord(
            runs=self.runs,
            as_json=self.as_json(),
            markdown=self.markdown(),
            metrics=metrics,
            params={name: x for name, x in self.options.items() if name.startswith("tune.")},
            tags={**tags, "rlplug.trials": str(len(self.trials))},
            series={"trials/score": scores, "trials/best_so_far": best_so_far},
            files={"best.toml": self._write_best},
        )

    def _write_best(self, file: Path) -> None:
        run = None if self.best is None else next(iter(self.best.runs), None)
        if run is not None and run.folder is not None:
            write_durably(file, (run.folder / CONFIG).read_bytes())

    def _table(self, trials: list[TrialRow]) -> list[list[str]]:
        """Headings, and a row per trial."""
        names = dict.fromkeys(name for one in self.trials for name in one.proposal.values)
        short = [name.rpartition(".")[2] for name in names]
        options = [
            end if short.count(end) == 1 else name for name, end in zip(names, short, strict=True)
        ]
        rows = [["trial", "status", self.label, "steps", *options, "run"]]
        for one in trials:
            values = one.proposal.values
            cells = [_cell(values[name]) if name in values else "" for name in names]
            score, steps = format_number(one.proposal.score), f"{one.step:,}"
            run = next((run.short for run in one.runs), "")
            rows.append([str(one.proposal.number), one.status, score, steps, *cells, run])
        return rows


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return format_number(value)
    return value if isinstance(value, str) else toml_value(value)
