"""Which kind of run it is; the code of other kinds is not imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlplug.envs import EnvMaker
from rlplug.envs.agents import game_maker
from rlplug.runs.prepare import Prepared
from rlplug.runs.setup import Setup

__all__ = ["setup_for"]


def setup_for(
    prepared: Prepared, maker: EnvMaker, *, source: Path | None = None, **place: Any
) -> Setup:
    """The setup of a run, whose kind alone is imported.

    `source` is the checkpoint that the policy comes from, if it is not new; `place` says which of
    several learners or runners it is for.
    """
    if prepared.config.data.is_used:
        from rlplug.runs.from_log import LogSetup

        return LogSetup(prepared, maker, source)
    if game_maker(maker, prepared.config.env.arguments) is not None:
        from rlplug.runs.agents import AgentsSetup

        return AgentsSetup(prepared, maker, **place)
    return Setup(prepared, maker, **place)
