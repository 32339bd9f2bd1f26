"""The copies that a run with a league keeps in its checkpoints, as policies."""

from __future__ import annotations

from pathlib import Path

from rlplug.checkpoint import find_checkpoint
from rlplug.checkpoint.manifest import reading
from rlplug.checkpoint.state import read_training
from rlplug.errors import RequestError
from rlplug.registry import Registry
from rlplug.runs.loading import load_checkpoint
from rlplug.serving import AgentPolicy

__all__ = ["load_league"]


def load_league(
    run: str | Path,
    *,
    checkpoint: str | int | Path = "last",
    seed: int = 0,
    registry: Registry | None = None,
    trust: bool = False,
) -> tuple[AgentPolicy, ...]:
    """The copies in the pool of a run with a league, the oldest first: `load_league("last")`.

    `step` of each is when it was made. The arguments are those of `load`.
    """
    path = find_checkpoint(str(run), checkpoint)
    with reading(path, "league"):
        saved = read_training(path)["run"].get("league")
    if not saved:
        raise RequestError(
            f"the run of {path} has no league.", "try: a run with [league], or rlplug.load"
        )
    found = []
    for one in saved["copies"]:
        policy = load_checkpoint(
            path, seed=seed, registry=registry, copies=one["modules"], trust=trust
        ).policy
        assert isinstance(policy, AgentPolicy)
        for own in (policy, *policy.agents.values()):
            own.step = one["step"]
        found.append(policy)
    return tuple(found)
