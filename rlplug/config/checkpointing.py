"""The section `[checkpoint]`: what is kept of a run while it goes on."""

from __future__ import annotations

import attrs

from rlplug.config.option import at_least, option

__all__ = ["CheckpointSection"]


@attrs.frozen(kw_only=True)
class CheckpointSection:
    """When checkpoints are written besides those of the best evaluation and of the end."""

    every: int = option(
        0, "Environment steps between checkpoints; 0: by the clock alone.", at_least(0)
    )
    minutes: float = option(
        5.0, "Minutes after which the next one is due at the latest; 0: never.", at_least(0)
    )
    keep: int = option(
        2, "Checkpoints that are kept besides the best; older ones are deleted.", at_least(1)
    )
