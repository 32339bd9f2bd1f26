"""The options of `[modules.NAME]`: which agents a module acts for, and options of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlplug.config.option import option

__all__ = ["ModuleSection"]


@attrs.frozen(kw_only=True)
class ModuleSection:
    """One module of a run in an environment with several agents."""

    agents: str | tuple[str, ...] = option(
        (),
        "Agents the module acts for: names, or patterns ('adversary_*').",
    )
    options: Mapping[str, Any] = option(
        dict,
        "Any other key is an option of the algorithm, for this module.",
        factory=True,
        rest=True,
    )

    @property
    def patterns(self) -> tuple[str, ...]:
        """`agents`, of which one alone may be written without a list."""
        return (self.agents,) if isinstance(self.agents, str) else self.agents
