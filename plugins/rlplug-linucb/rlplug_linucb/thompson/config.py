"""The options of LinTS."""

from __future__ import annotations

import attrs

from rlplug.config import at_least, option
from rlplug_linucb.config import LinearOptions

__all__ = ["LinTSConfig"]


@attrs.frozen(kw_only=True)
class LinTSConfig(LinearOptions):
    """Options of LinTS."""

    v: float = option(
        0.25,
        "Scale of the posterior's standard deviations; 0 chooses by the mean alone.",
        at_least(0),
        schedulable=True,
    )
