"""Whether environments gave numbers that something can be learned from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy

from rlplug.batch.nested import leaves
from rlplug.envs import Environments
from rlplug.errors import EnvironmentFailedError
from rlplug.feeds.experience import Experience

__all__ = ["refuse_broken"]


@numpy.errstate(over="ignore", invalid="ignore")
def refuse_broken(
    environments: Environments,
    columns: Mapping[str, Any],
    seen: Mapping[str, Any],
    experience: Experience | None,
    timestep: int,
) -> None:
    """Refuse rewards and observations that are not finite, naming the first of them.

    Once per collection: `seen` is what will be acted on next, `columns` what was acted on before.
    """
    if experience is not None:
        steps = experience.steps
        if not _finite(columns["rewards"]):
            raise _broken(environments, "reward", columns["rewards"], experience, timestep)
        if steps > 1:
            for leaf in leaves(columns["observations"]):
                if not _finite(leaf):
                    # What was acted on is what the step before led to.
                    num_envs = environments.num_envs
                    raise _broken(
                        environments, "observation", leaf, experience, timestep - num_envs
                    )
        if experience.finals is not None:
            for leaf in leaves(experience.finals.seen["observations"]):
                if not _finite(leaf):
                    raise _message(environments, "final observation", "", timestep)
        timestep += steps * environments.num_envs
    for leaf in leaves(seen["observations"]):
        if not _finite(leaf):
            row = int(numpy.flatnonzero(~_finite_rows(leaf))[0])
            raise _message(environments, "observation", _which(environments, row), timestep)


def _finite(leaf: Any) -> bool:
    """One pass in one call; only numbers that are very large make it look twice."""
    if leaf.dtype.kind != "f":
        return True
    flat = leaf.ravel()
    return math.isfinite(flat.dot(flat)) or bool(numpy.isfinite(leaf).all())


def _finite_rows(leaf: Any) -> Any:
    return numpy.isfinite(leaf).reshape(len(leaf), -1).all(1)


def _broken(
    environments: Environments, what: str, column: Any, experience: Experience, timestep: int
) -> EnvironmentFailedError:
    times, envs = experience.places()
    bad = numpy.flatnonzero(~_finite_rows(column))
    first = bad[numpy.argmin(times[bad])]
    after = timestep + (int(times[first]) + 1) * environments.num_envs
    return _message(environments, what, _which(environments, int(envs[first])), max(after, 0))


def _which(environments: Environments, index: int) -> str:
    if environments.num_envs == 1:
        return ""
    return f" ({index + 1} of {environments.num_envs})"


def _message(
    environments: Environments, what: str, which: str, timestep: int
) -> EnvironmentFailedError:
    return EnvironmentFailedError(
        f"environment {environments.name!r}{which} gave a {what} that is not a finite number "
        f"after {timestep:,} steps.",
        "try: mend the environment, or put a wrapper around it that replaces such numbers",
    )
