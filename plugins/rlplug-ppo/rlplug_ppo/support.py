"""Which spaces there are networks and distributions for."""

from __future__ import annotations

import torch
from gymnasium import spaces

from rlplug import UnsupportedSpaceError
from rlplug.nn import ActorCriticOptions, make_distribution, make_encoder
from rlplug.spaces import AnySpace, describe

__all__ = ["unsupported"]


def unsupported(
    observation_space: AnySpace, action_space: AnySpace, options: ActorCriticOptions
) -> str | None:
    """Why these spaces cannot be handled with these options; None if they can."""
    endless = isinstance(action_space, spaces.Box) and not action_space.is_bounded()
    if options.squash and endless:
        return (
            f"squash = true needs actions with bounds on both sides: {describe(action_space)}.\n"
            "  try: --set squash=false, which draws from normal distributions"
        )
    try:
        make_distribution(action_space, squash=options.squash)
        if not options.encoder:
            # On no device at all: nothing is computed, and no random number drawn.
            with torch.device("meta"):
                make_encoder(observation_space, ortho_init=False)
    except UnsupportedSpaceError as error:
        return str(error)
    return None
