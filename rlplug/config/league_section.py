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

    every: int = option(
        0, "Add a copy to the pool every so many environment steps; 0: by win_rate.", at_least(0)
    )
    win_rate: float = option(
        0.0,
        "Add a copy once this share of the last 100 episodes against the pool is won, draws "
        "counting half; with every: whichever comes first; 0: by every.",
        between(0, 1),
    )
    pool: int = option(8, "Number of copies to keep; the oldest is removed.", at_least(1))
    draw: str = option(
        "uniform",
        "Draw opponents of an episode: the latest copy, all alike (uniform), or those more "
        "often that win more against the current weights (prioritized).",
        one_of(DRAWS),
    )
    self_play: float = option(
        0.0,
        "Share of episodes without copies, in which all agents act with the current weights.",
        between(0, 1),
    )
    sides: tuple[str, ...] = option(
        (),
        "Agents that are on one side, as a pattern for each side: 'red_*'. Unset: every agent"
        " of a single module is a side; of several modules, every module.",
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
