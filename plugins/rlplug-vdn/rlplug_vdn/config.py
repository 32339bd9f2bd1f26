"""Options of VDN: those of DQN, and how the values of a team are mixed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import attrs
from rlplug_dqn import DQNConfig

from rlplug.config import at_least, option

__all__ = ["VDNConfig"]


@attrs.frozen(kw_only=True)
class VDNConfig(DQNConfig):
    """Options of VDN."""

    mixing: Literal["vdn", "qmix"] = option(
        "vdn",
        "Value of a team: vdn, the sum of its agents' values; qmix, a monotonic network of them "
        "whose weights follow from the state of the environment.",
    )
    mixing_width: int = option(32, "Hidden size of the mixing network of qmix.", at_least(1))

    def _conflicts(self) -> Iterator[str]:
        yield from super()._conflicts()
        for name in ("distributional", "quantile", "cql_alpha"):
            if getattr(self, name):
                yield f"{name} is for the values of one agent: leave it out"
