"""What MLflow records of a run besides metrics: experiment, name, params, tags, description."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.secrets import MASK, masked
from rlplug.config.sections import RunConfig
from rlplug.config.toml import flat
from rlplug.hooks.events import RunInfo
from rlplug.quantities import format_duration, format_number
from rlplug.registry import core_version
from rlplug.review.record import RunAbout, Trial, best_evaluation
from rlplug.tracking.location import without_secrets

LOCAL_ID = "rlplug.local_id"
"""The tag of a run that was created late: the id that it was started under."""
ABOUT_TAG = "rlplug.about"
"""The tag with what the run is, as JSON."""
LONGEST_PARAM = 6000
LONGEST_TAG = 8000


@attrs.frozen(kw_only=True)
class Record:
    """The record of a run before its first environment step."""

    experiment: str
    experiment_id: str
    """Experiment id from MLFLOW_EXPERIMENT_ID; empty: look it up by name."""
    run_name: str
    number_names: bool
    """Whether to append a number to a name that is taken."""
    params: Mapping[str, str]
    tags: Mapping[str, str]
    about: RunAbout
    evaluated: bool | None = None
    """Whether evaluations are made, by which the experiment is shown; None: as it is."""
    started: int | None = None
    """Milliseconds since the epoch; None: when it is created in MLflow."""

    def content(self) -> bytes:
        """As JSON."""
        return json.dumps(attrs.asdict(self), indent=2).encode() + b"\n"

    @classmethod
    def read(cls, content: bytes) -> Record:
        """The record of which this is the content."""
        facts = json.loads(content)
        return cls(**{**facts, "about": RunAbout.read(facts["about"])})


def record_of(
    config: RunConfig,
    environment: str,
    chosen: Mapping[str, Any],
    root: Path,
    trial: Trial | None = None,
) -> Record:
    """Make the record from the options, the command line, the runs folder and the machine."""
    about, tracking = about_run(config, environment, chosen), config.tracking
    name = f"{config.run.algorithm}-{environment}"
    if trial is not None:
        about = attrs.evolve(about, group=trial.study, trial=str(trial.number))
        name = f"{trial.study}-t{trial.number}"
    experiment = tracking.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "")
    tags = {
        **basic_tags("run"),
        "rlplug.version": core_version(),
        "rlplug.algo": about.algorithm,
        "rlplug.env": about.env,
        "rlplug.seed": str(about.seed),
        "rlplug.group": about.group,
        **({"rlplug.trial": about.trial} if about.trial else {}),
        "rlplug.options": about.shown_options,
        ABOUT_TAG: json.dumps(attrs.asdict(about)),
        **place_tags(root),
        "rlplug.attempt": "1",
        **tracking.tags,
    }
    return Record(
        experiment=experiment or f"rlplug/{environment}",
        experiment_id="" if experiment else os.environ.get("MLFLOW_EXPERIMENT_ID", ""),
        run_name=tracking.run_name or slug(f"{name}-s{config.run.seed}"),
        number_names=not tracking.run_name,
        params={name: _param(value) for name, value in masked(flat(config)).items()},
        tags={name: str(value)[:LONGEST_TAG] for name, value in masked(tags).items()},
        about=about,
        evaluated=config.evaluation.episodes > 0,
    )


def about_run(config: RunConfig, environment: str, chosen: Mapping[str, Any]) -> RunAbout:
    """What the run is; `chosen` are the options that differ from the defaults."""
    of_all_seeds = {
        name: value
        for name, value in flat(config).items()
        if name != "run.seed" and not name.startswith("tracking.")
    }
    digest = _digest({**of_all_seeds, "run.env": environment}, 4)
    return RunAbout(
        algorithm=config.run.algorithm,
        env=environment,
        seed=config.run.seed,
        group=slug(f"{config.run.algorithm}-{environment}-{digest}"),
        steps=config.run.steps,
        options={
            name: _param(value)
            for name, value in chosen.items()
            if name not in ("run.env", "run.seed") and not name.startswith("tracking.")
        },
    )


def basic_tags(kind: str) -> dict[str, str]:
    """Who started what kind of run, and how."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # In containers, the user id may have no name.
        user = "unknown"
    return {
        "mlflow.source.name": command_line(),
        "mlflow.source.type": "LOCAL",
        "mlflow.user": user,
        "rlplug.kind": kind,
    }


def place_tags(root: Path) -> dict[str, str]:
    """Tags for the process that carries out a run, and for the runs folder that it writes."""
    return {
        "rlplug.host": socket.gethostname(),
        "rlplug.pid": str(os.getpid()),
        "rlplug.root": str(root)[:LONGEST_TAG],
    }


def tags_at_start(run: RunInfo) -> dict[str, str]:
    """The tags of plugins and progress, set when the run starts."""
    tags = {
        "rlplug.plugins": _plugins(run),
        "rlplug.steps": str(run.steps),
        **({"rlplug.resumed_from_step": str(run.step)} if run.resumed else {}),
    }
    return {name: value[:LONGEST_TAG] for name, value in tags.items()}


def command_line(arguments: Sequence[str] | None = None) -> str:
    """The command line, quoted for a shell."""
    typed = sys.argv if arguments is None else arguments
    program = Path(typed[0] if typed else "python")
    name = program.parent.name if program.name == "__main__.py" else program.name
    # One by one: only then is it certain where each ends.
    return without_secrets(shlex.join([name or "python", *map(_shown, typed[1:])]))


def slug(text: str) -> str:
    """The text as a single path component."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "run"


def description(
    run: RunInfo,
    about: RunAbout,
    ending: str,
    step: int,
    metrics: Mapping[str, float],
    error: str = "",
) -> str:
    """The description on a run's page in MLflow, as Markdown: results, and how to run it again."""
    # MLflow shows a few lines until more are asked for: options and the best come first.
    options = f"`{about.shown_options}`" if about.options else "default options"
    best, seconds = best_evaluation(metrics), metrics.get("time/seconds", 0.0)
    short = run.run_id[:8]
    lines = [
        f"**{about.algorithm}** on **{about.env}**, seed {about.seed}, {options}: {ending} after "
        f"{step:,} of {run.steps:,} environment steps.",
        "",
        *(["```text", error.strip(), "```", ""] if error else []),
    ]
    if best is not None:
        lines.append(f"- best evaluation: **{format_number(best[1])}** at step {best[0]:,}")
    names = ("eval/return_mean", "rollout/return_mean", "rollout/reward_mean")
    for name in (*names, *sorted(name for name in metrics if "regret" in name)):
        if math.isfinite(metrics.get(name, math.nan)):
            lines.append(f"- {name}: {format_number(metrics[name])}")
    if seconds:
        speed = f"{step / seconds:,.0f} steps per second"
        lines.append(f"- training took: {format_duration(seconds)}, {speed}")
    lines += [
        f"- plugins: {_plugins(run)}",
        "- curves, checkpoints and the video: `report.html` among the artifacts",
        "",
        "```bash",
        f"{command_line()}    # started it",
        *([f"rlplug run --like {short}"] if run.rerunnable else []),
        f"rlplug resume {short}",
        f"rlplug eval {short} --episodes 100",
        "```",
    ]
    return "\n".join(lines)


def _plugins(run: RunInfo) -> str:
    plugins = [participant.found for participant in run.participants]
    return ", ".join(f"{one.name} {one.version} ({one.distribution})" for one in plugins)


def _shown(word: str) -> str:
    name, _, value = word.partition("=")
    return f"{name}={MASK}" if masked(value, name) == MASK else without_secrets(word)


def _param(value: Any) -> str:
    safe = masked(value)
    text = safe if isinstance(safe, str) else json.dumps(safe, default=str)
    shown = without_secrets(text)
    return shown if len(shown) <= LONGEST_PARAM else shown[: LONGEST_PARAM - 1] + "…"


def _digest(values: Mapping[str, Any], length: int) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
