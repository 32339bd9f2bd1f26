"""The section `[evaluation]`: greedy episodes in environments of their own."""

from __future__ import annotations

import attrs

from rlplug.config.option import at_least, option

__all__ = ["EvaluationSection"]


@attrs.frozen(kw_only=True)
class EvaluationSection:
    """How often and how long a run is evaluated, and what that decides."""

    every: int = option(
        0,
        "Environment steps between evaluations; 0: only at the end. Not set: a tenth of the run.",
        at_least(0),
    )
    episodes: int = option(
        10,
        "Episodes of each evaluation; 0: never evaluate. Not set, nor anything else of "
        "[evaluation]: 0 where episodes have one step, for those rewards tell all.",
        at_least(0),
    )
    parallel: int = option(10, "Episodes that are played side by side.", at_least(1))
    stop_at_return: float = option(
        float("inf"), "End the run once the mean return is at least this; inf: never."
    )
    patience: int = option(
        0,
        "End the run after this many evaluations in a row without a better one; 0: never.",
        at_least(0),
    )
    video: bool = option(
        False, "Keep a video of an episode of every evaluation that is the best so far."
    )

    def __attrs_post_init__(self) -> None:
        if self.episodes:
            return
        idle = {
            "stop_at_return": self.stop_at_return < float("inf"),
            "patience": self.patience > 0,
            "video": self.video,
        }
        said = [name for name, wanted in idle.items() if wanted]
        if said:
            raise ValueError(
                f"{' and '.join(said)} had no effect with episodes = 0, which never evaluates"
            )
