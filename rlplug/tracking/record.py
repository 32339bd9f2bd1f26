"""What MLflow records of a run at its start: experiment, name, params and tags."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.secrets import MASK, masked
from rlplug.config.sections import RunConfig
from rlplug.config.toml import flat
from rlplug.hooks.events import RunInfo
from rlplug.registry import core_version
from rlplug.review.record import RunAbout, Trial
from rlplug.tracking.location import without_secrets
from rlplug.tracking.status import now

LOCAL_ID = "rlplug.local_id"
"""The tag of a run that was created late: the id that it was started under."""
HEARTBEAT_TAG = "rlplug.heartbeat"
"""When a run in progress was last heard of: other hosts see by it whether it goes on."""
LONGEST_PARAM = 6000
LONGEST_TAG = 8000


@attrs.frozen(kw_only=True)
class Dataset:
    """An environment, which MLflow lists among the inputs of a run."""

    context: str
    """`train` or `eval`."""
    name: str
    digest: str
    source: str
    """What it is made from, as JSON."""


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
    datasets: tuple[Dataset, ...]
    """The environments of training and of evaluations."""
    about: RunAbout
    started: int | None = None
    """Milliseconds since the epoch; None: when it is created in MLflow."""

    def content(self) -> bytes:
        """As JSON."""
        return json.dumps(attrs.asdict(self), indent=2).encode() + b"\n"

    @classmethod
    def read(cls, content: bytes) -> Record:
        """The record of which this is the content, without what only other versions know."""
        known = {field.name for field in attrs.fields(cls)}
        facts = {name: one for name, one in json.loads(content).items() if name in known}
        datasets = tuple(Dataset(**one) for one in facts.get("datasets", ()))
        return cls(**{**facts, "about": RunAbout.read(facts["about"]), "datasets": datasets})


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
        number = str(trial.number) if trial.number >= 0 else ""
        about = attrs.evolve(about, group=trial.study, trial=number)
        name = f"{trial.study}-t{number}"
    experiment = tracking.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "")
    return Record(
        experiment=experiment or f"rlplug/{environment}",
        experiment_id="" if experiment else os.environ.get("MLFLOW_EXPERIMENT_ID", ""),
        run_name=tracking.run_name or slug(f"{name}-s{config.run.seed}"),
        number_names=not tracking.run_name,
        params={name: _param(value) for name, value in masked(flat(config)).items()},
        tags=_tags(config, about, root),
        about=about,
        datasets=tuple(_datasets(config, environment)),
    )


def _datasets(config: RunConfig, environment: str) -> Iterator[Dataset]:
    """The training environment and, with the options of its episodes, that of evaluations."""
    source = {"id": environment, **config.env.arguments}
    sources = {"train": source}
    if config.evaluation.episodes:
        names = ("episodes", "parallel", "max_episode_steps")
        options = {name: getattr(config.evaluation, name) for name in names}
        sources["eval"] = {**source, **options, "run_seed": config.run.seed}
    for context, source in sources.items():
        name = environment if context == "train" else f"{environment}-eval"
        text = json.dumps(masked(source), default=str)
        # No longer than MLflow takes.
        digest, name, text = _digest(source, 8), name[:500], text[:60_000]
        yield Dataset(context=context, name=name, digest=digest, source=text)


def about_run(config: RunConfig, environment: str, chosen: Mapping[str, Any]) -> RunAbout:
    """What the run is; `chosen` are the options that differ from the defaults."""
    of_all_seeds = _options(config, environment)
    del of_all_seeds["run.seed"]
    elsewhere = ("run.env", "run.seed")
    return RunAbout(
        algorithm=config.run.algorithm,
        env=environment,
        seed=config.run.seed,
        group=slug(f"{config.run.algorithm}-{environment}-{_digest(of_all_seeds, 4)}"),
        steps=config.run.steps,
        options={
            name: _param(value)
            for name, value in chosen.items()
            if name not in elsewhere and not name.startswith("tracking.")
        },
    )


def tags_at_start(run: RunInfo) -> dict[str, str]:
    """The tags of plugins and progress, set when the run starts."""
    plugins = [one.found for one in run.participants]
    tags = {
        "rlplug.plugins": ", ".join(f"{x.name} {x.version} ({x.distribution})" for x in plugins),
        "rlplug.rerunnable": str(run.rerunnable).lower(),
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


def _shown(word: str) -> str:
    name, _, value = word.partition("=")
    return f"{name}={MASK}" if masked(value, name) == MASK else without_secrets(word)


def slug(text: str) -> str:
    """The text as a single path component."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "run"


def _options(config: RunConfig, environment: str) -> dict[str, Any]:
    """The options that a result depends on."""
    options = {
        name: value for name, value in flat(config).items() if not name.startswith("tracking.")
    }
    return {**options, "run.env": environment}


def _tags(config: RunConfig, about: RunAbout, root: Path) -> dict[str, str]:
    tags = {
        "mlflow.source.name": command_line(),
        "mlflow.source.type": "LOCAL",
        "mlflow.user": user_name(),
        "rlplug.schema": "1",
        "rlplug.version": core_version(),
        "rlplug.kind": "run",
        "rlplug.algo": about.algorithm,
        "rlplug.env": about.env,
        "rlplug.seed": str(about.seed),
        "rlplug.group": about.group,
        **({"rlplug.trial": about.trial} if about.trial else {}),
        "rlplug.options": about.shown_options,
        "rlplug.config_hash": _digest(_options(config, about.env), 12),
        **place_tags(root),
        "rlplug.attempt": "1",
        **config.tracking.tags,
    }
    return {name: str(value)[:LONGEST_TAG] for name, value in masked(tags).items()}


def place_tags(root: Path) -> dict[str, str]:
    """Tags for the process that carries out a run, and for the runs folder that it writes."""
    return {
        HEARTBEAT_TAG: now(),
        "rlplug.host": socket.gethostname(),
        "rlplug.pid": str(os.getpid()),
        "rlplug.root": str(root)[:LONGEST_TAG],
    }


def user_name() -> str:
    """Who runs this process, for MLflow's column of users."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # In containers, the user id may have no name.
        return "unknown"


def _param(value: Any) -> str:
    safe = masked(value)
    text = safe if isinstance(safe, str) else json.dumps(safe, default=str)
    shown = without_secrets(text)
    return shown if len(shown) <= LONGEST_PARAM else shown[: LONGEST_PARAM - 1] + "…"


def _digest(values: Mapping[str, Any], length: int) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
