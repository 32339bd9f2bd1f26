"""What a child is told to do: a run with resolved options, or the rest of a run.

Nothing is pickled, so that an order can go to any host.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from rlplug.config.sections import ScaleSection
from rlplug.config.sources import Setting
from rlplug.config.toml import as_mapping
from rlplug.runs.prepare import Prepared
from rlplug.runs.rebuilding import prepared_of

__all__ = ["prepared_from", "resume_order", "run_order"]


def run_order(prepared: Prepared, **more: Any) -> dict[str, Any]:
    """To carry out a run.

    `more` may have `resume_existing`, the name of a run to go on with if there is one, the `trial`
    that the run is, and whether it `asks` after each evaluation if it is to go on.
    """
    return {
        "kind": "run",
        "config": as_mapping(prepared.config),
        "origins": dict(prepared.origins),
        "defaults": dict(prepared.defaults),
        "argv": sys.argv,
        **more,
    }


def resume_order(
    run_id: str,
    *,
    steps: int = 0,
    settings: Iterable[Setting] = (),
    allow_drift: bool = False,
    trust: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """To go on with a run; `more` as for one that starts."""
    pairs = [(setting.key, setting.value) for setting in settings]
    return {
        "kind": "resume",
        "run": run_id,
        "steps": steps,
        "settings": pairs,
        "allow_drift": allow_drift,
        "trust": trust,
        "argv": sys.argv,
        **more,
    }


def prepared_from(order: Mapping[str, Any]) -> Prepared:
    """The run of an order, with the plugins that are installed here."""
    prepared = prepared_of(order["config"], "its group")
    if order.get("placed"):
        # What was placed on a cluster as a whole is not spread again.
        config = attrs.evolve(prepared.config, scale=ScaleSection())
        prepared = attrs.evolve(prepared, config=config)
    return attrs.evolve(
        prepared.with_options(run={"preset": order["config"]["run"]["preset"]}),
        origins=order["origins"],
        defaults=order["defaults"],
    )
