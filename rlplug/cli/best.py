"""`rlplug best`: the best checkpoint of a run, and what can be done with it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option
from rlplug.cli.terminal import in_columns
from rlplug.errors import RequestError
from rlplug.quantities import format_number, format_path

if TYPE_CHECKING:
    from rlplug.checkpoint import Manifest

__all__ = ["best", "next_steps"]


@click.command("best", cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@debug_option
def best(run: str, as_json: bool) -> None:
    """Show the best checkpoint of a run: score, step, folder, and its model in MLflow.

    RUN is the id of a run or its first characters, its name, its folder, last, best:ENV, or a
    group, of which the best run is taken. The best checkpoint is that of the best evaluation; of a
    run without evaluations, it is the last one.

    \b
    rlplug best last
    rlplug best best:CartPole-v1 --json
    """
    from rlplug.checkpoint import find_checkpoint, read_manifest
    from rlplug.tracking.model_registry import is_model_uri

    if is_model_uri(run):
        raise RequestError(
            f"{run!r} is a model, which has one checkpoint.", "try: rlplug best with its run"
        )
    path = find_checkpoint(run)
    manifest = read_manifest(path)
    model_id, reason = _model(path)
    if as_json:
        click.echo(json.dumps(_as_json(path, manifest, model_id)))
        return
    for line in in_columns(_rows(path, manifest, model_id, reason)):
        click.echo(line)


def _rows(path: Path, manifest: Manifest, model_id: str, reason: str) -> dict[str, str]:
    from rlplug.tracking.location import RunFolder

    score = manifest.evaluation.get("eval/return_mean")
    named = RunFolder.read(path.absolute().parent.parent)
    short = f"{manifest.run_id[:8]}@{manifest.step}"
    rows = {
        "best": "the last checkpoint; there was no evaluation"
        if score is None
        else _score(score, manifest.evaluation),
        "step": f"{manifest.step:,}",
        "run": manifest.run_id,
        **({} if named is None else {"name": named.run_name}),
        "checkpoint": format_path(path),
        "model": f"models:/{model_id}" if model_id else reason,
    }
    return {
        **rows,
        **next_steps(short, f"models:/{model_id}" if model_id else ""),
        "promote it": f"rlplug promote {short} NAME",
    }


def _score(mean: float, evaluation: Mapping[str, float]) -> str:
    shown = format_number(mean)
    if "eval/return_std" in evaluation:
        shown += f" ± {format_number(evaluation['eval/return_std'])}"
    if "eval/episodes" in evaluation:
        shown += f" in {evaluation['eval/episodes']:,.0f} episodes"
    return shown


def next_steps(run: str, uri: str) -> dict[str, str]:
    """How to use a checkpoint, and its model if it has one."""
    rows = {
        "load it": f'rlplug.load("{run}")',
        "evaluate it": f"rlplug eval {run}",
        "serve it": f"rlplug serve {run}",
    }
    if uri:
        rows[""] = f"{_setting()}mlflow models serve -m {uri} --env-manager local"
    return rows


def _setting() -> str:
    """What tells MLflow's own commands where the store is."""
    from rlplug.tracking.location import runs_folder, tracking_uri, without_secrets

    uri = tracking_uri("", runs_folder())
    if os.environ.get("MLFLOW_TRACKING_URI", "").rstrip("/") == uri:
        return ""
    return f"MLFLOW_TRACKING_URI={shlex.quote(without_secrets(uri))} "


def _model(path: Path) -> tuple[str, str]:
    """The id of the model of a checkpoint in MLflow, and, if it has none, why."""
    from rlplug.tracking.location import RunFolder
    from rlplug.tracking.model_registry import find_model
    from rlplug.tracking.status import known_models

    folder = path.absolute().parent.parent
    found = known_models(folder).get(path.name, "")
    if found:
        return found, ""
    run = RunFolder.read(folder)
    if run is not None and not run.is_tracked:
        return "", "none: the run was started without MLflow"
    if run is not None:
        return "", "none in MLflow yet; rlplug promote logs it"
    return find_model(path), "none in MLflow"


def _as_json(path: Path, manifest: Manifest, model_id: str) -> dict[str, Any]:
    score = manifest.evaluation.get("eval/return_mean")
    return {
        "run_id": manifest.run_id,
        "step": manifest.step,
        # JSON has no NaN.
        "score": score if score == score else None,
        "metrics": {name: x for name, x in manifest.evaluation.items() if x == x},
        "checkpoint": str(path),
        "model_id": model_id or None,
        "model_uri": f"models:/{model_id}" if model_id else None,
    }
