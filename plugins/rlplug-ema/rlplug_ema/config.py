"""The options of EMA."""

from __future__ import annotations

import attrs

from rlplug import option
from rlplug.config import at_least, below

__all__ = ["EMAConfig"]


@attrs.frozen(kw_only=True)
class EMAConfig:
    """Options of EMA."""

    decay: float = option(
        0.999,
        "Decay per optimizer step: the average reaches back about 1 / (1 - decay) steps.",
        at_least(0),
        below(1),
    )
