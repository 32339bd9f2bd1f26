"""What a run's page in MLflow says first: its headline numbers, and how to do it again."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlplug.hooks.events import RunInfo
from rlplug.tracking.headlines import earned
from rlplug.tracking.record import command_line

__all__ = ["summary"]

_ENDINGS = {
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "was interrupted",
    "RUNNING": "is running",
}
_HEADLINES = ("eval/return_mean", "time/steps_per_second", "time/seconds")


def summary(
    run: RunInfo, status: str, step: int, metrics: Mapping[str, float], error: str = ""
) -> str:
    """The summary as Markdown."""
    packages = ", ".join(one.found.package for one in run.participants)
    lines = [
        f"**{run.config.run.algorithm}** on **{run.environment}**, seed {run.config.run.seed}: "
        f"{_ENDINGS[status]} after {step:,} of {run.steps:,} environment steps.",
        "",
    ]
    if error:
        lines += ["```text", error.strip(), "```", ""]
    shown = [name for name in _headlines(metrics) if math.isfinite(metrics[name])]
    if shown:
        lines += ["| metric | last value |", "|---|---:|"]
        lines += [f"| {name} | {metrics[name]:,.5g} |" for name in shown]
        lines.append("")
    lines += ["Made by:", "", "```bash", command_line(), "```", ""]
    if run.rerunnable:
        lines += [
            "Do it again, from `config/resolved.toml` among the artifacts:",
            "",
            "```bash",
            "rlplug run --config resolved.toml",
            "```",
            "",
        ]
    else:
        lines += ["It was started from Python with objects of its own: run that program again.", ""]
    lines.append(f"Plugins: {packages}. Curve: `plots/learning_curve.png`.")
    return "\n".join(lines)


def _headlines(metrics: Mapping[str, float]) -> list[str]:
    regrets = sorted(name for name in metrics if "regret" in name)
    return [name for name in (earned(metrics), *regrets, *_HEADLINES) if name in metrics]
