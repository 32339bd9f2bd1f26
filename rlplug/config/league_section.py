"""The options of `[league]`: self-play against frozen copies of the modules that are trained."""

from __future__ import annotations

import attrs

from rlplug.config.option import at_least, between, changed, no_effect, one_of, option, refuse

__all__ = ["DRAWS", "LeagueSection"]

DRAWS = ("latest", "uniform", "prioritized")
"""How opponents are drawn."""


@attrs.frozen(kw_only=True)
class LeagueSection:
    """Self-play against frozen copies of the modules, in environments with several agents."""

    every: int = option(0, "Steps between copies into the pool; 0: by win_rate.", at_least(0))
    win_rate: float = option(
        0.0, "Copy once this share of 100 episodes is won, draws half; 0: by every.", between(0, 1)
    )
    pool: int = option(8, "Copies to keep; the oldest is removed.", at_least(1))
    draw: str = option(
        "uniform", "Draw the latest, all alike, or those more often that win more.", one_of(DRAWS)
    )
    self_play: float = option(0.0, "Share of episodes without copies.", between(0, 1))
    sides: tuple[str, ...] = option(
        (), "A pattern of agents for each side: 'red_*'. Unset: each agent, or each module."
    )

    def __attrs_post_init__(self) -> None:
        if not self.is_used:
            refuse(no_effect(changed(self), "without every or win_rate, by which copies are added"))
        elif self.self_play == 1:
            raise ValueError("self_play = 1 leaves no episode to the copies")

    @property
    def is_used(self) -> bool:
        """Whether there is a league."""
        return bool(self.every or self.win_rate)
