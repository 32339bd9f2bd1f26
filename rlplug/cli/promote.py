"""`rlplug promote`: register the model of a checkpoint under a name, with an alias."""

from __future__ import annotations

import json

import click

from rlplug.cli.best import next_steps
from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option
from rlplug.cli.terminal import in_columns

__all__ = ["promote"]


@click.command("promote", cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="RUN[@STEP]")
@click.argument("name", metavar="NAME")
@click.option(
    "--alias",
    default="champion",
    show_default=True,
    metavar="ALIAS",
    help="Alias of the version; another version that has it loses it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@debug_option
def promote(run: str, name: str, alias: str, as_json: bool) -> None:
    """Register the best checkpoint of a run in MLflow's model registry.

    RUN is named as for eval; its best checkpoint is taken, RUN@STEP is the one at a step,
    models:/NAME@ALIAS a model in MLflow. The model becomes a version of NAME, unless it is one
    already, and the alias is moved to it. The registry is that of the store in which the run is
    recorded.

    \b
    rlplug promote best:CartPole-v1 cart-pole
    rlplug promote last@51200 cart-pole --alias challenger
    rlplug promote models:/cart-pole@challenger cart-pole
    """
    from rlplug.checkpoint import find_checkpoint
    from rlplug.tracking import model_registry

    if model_registry.is_model_uri(run):
        done = model_registry.promote_model(run, name, alias)
    else:
        done = model_registry.promote(find_checkpoint(run), name, alias)
    if as_json:
        facts = {
            "name": done.name,
            "version": done.version,
            "alias": done.alias,
            "alias_before": done.before or None,
            "model_id": done.model_id,
            "model_uri": done.uri,
            "run_id": done.run_id,
            "step": done.step,
        }
        click.echo(json.dumps(facts))
        return
    was = " (was registered before)" if done.was_registered else ""
    if done.before == done.version:
        moved = "as before"
    elif done.before:
        moved = f"moved from version {done.before}"
    else:
        moved = "new"
    rows = {
        "registered": f"{done.name}, version {done.version}{was}",
        "alias": f"{done.alias}, {moved}",
        "from": f"step {done.step:,} of run {done.run_id}, models:/{done.model_id}",
        **next_steps(done.uri, done.uri),
    }
    for line in in_columns(rows):
        click.echo(line)
