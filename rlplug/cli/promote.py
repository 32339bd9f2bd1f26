"""`rlplug promote`: register the model of a checkpoint under a name, with an alias."""

from __future__ import annotations

import attrs
import click

from rlplug.cli.command import Command
from rlplug.cli.options import JSON, RUN, option
from rlplug.cli.output import print_json, print_next, print_rows

__all__ = ["promote"]


@click.command("promote", cls=Command)
@RUN
@click.argument("name", metavar="NAME")
@option("--alias ALIAS", "Alias to move to this version.", default="champion")
@JSON
def promote(run: str, name: str, alias: str, as_json: bool) -> None:
    """Register the best checkpoint of a run in MLflow's model registry.

    RUN is named as for eval; RUN@STEP is another checkpoint, models:/NAME@ALIAS a model in MLflow.

    \b
    rlplug promote best:CartPole-v1 cart-pole
    rlplug promote last@51200 cart-pole --alias challenger
    """
    from rlplug.checkpoint import find_checkpoint
    from rlplug.tracking import model_registry

    if model_registry.is_model_uri(run):
        done = model_registry.promote_model(run, name, alias)
    else:
        done = model_registry.promote(find_checkpoint(run), name, alias)
    if as_json:
        print_json({**attrs.asdict(done), "model_uri": done.uri})
        return
    was = ", which was registered before" if done.was_registered else ""
    moved = f", moved from version {done.before}" if done.before not in ("", done.version) else ""
    print_rows(
        {
            "registered": f"{done.name}, version {done.version}{was}",
            "alias": f"{done.alias}{moved}",
            "from": f"step {done.step:,} of run {done.run_id}, models:/{done.model_id}",
            "load it": f'rlplug.load("{done.uri}")',
        }
    )
    print_next(f"serve {done.uri}")
