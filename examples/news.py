"""A news page: LinUCB learns which of a changing set of articles to show to which visitor.

python examples/news.py
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

from rlplug import ActInput, run

TOPICS = 5
SLOTS = 6
VISITORS = 6_000


class NewsPage(gymnasium.Env[dict[str, Any], numpy.int64]):
    """Each episode is one visitor, who is shown one of the available articles."""

    observation_space = spaces.Dict(
        {
            "context": spaces.Box(0.0, 1.0, (TOPICS,), numpy.float64),
            "arms": spaces.Box(0.0, 1.0, (SLOTS, TOPICS), numpy.float64),
            "action_mask": spaces.MultiBinary(SLOTS),
        }
    )
    action_space = spaces.Discrete(SLOTS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next visitor; with probability 1/20, a new article replaces another."""
        super().reset(seed=seed)
        if seed is not None:
            self._articles = self.np_random.dirichlet(numpy.full(TOPICS, 0.5), SLOTS)
        if self.np_random.random() < 0.05:
            slot = self.np_random.integers(SLOTS)
            self._articles[slot] = self.np_random.dirichlet(numpy.full(TOPICS, 0.5))
        self._present = self.np_random.random(SLOTS) < 0.8
        self._present[self.np_random.integers(SLOTS)] = True
        self._visitor = self.np_random.dirichlet(numpy.full(TOPICS, 0.5))
        return self._seen(), {}

    def step(self, action: numpy.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Visitors click on articles about their topics; the run logs `regret`."""
        chances = numpy.where(self._present, 0.02 + 0.6 * self._articles @ self._visitor, 0.0)
        clicked = float(self.np_random.random() < chances[action])
        regret = float(chances.max() - chances[action])
        return self._seen(), clicked, True, False, {"regret": regret}

    def _seen(self) -> dict[str, Any]:
        return {
            "context": self._visitor,
            "arms": self._articles.copy(),
            "action_mask": self._present.astype(numpy.int8),
        }


def clicks(choose: Any, visitors: int = 2_000) -> float:
    """The click rate on a page with other articles."""
    page = NewsPage()
    seen, _ = page.reset(seed=7)
    clicked = 0.0
    for _ in range(visitors):
        clicked += page.step(choose(seen))[1]
        seen, _ = page.reset()
    return clicked / visitors


def main() -> None:
    """Train on some visitors, then evaluate on others."""
    result = run("linucb", NewsPage, steps=VISITORS, seed=1, options={"alpha": 0.5})

    def learned(seen: dict[str, Any]) -> int:
        observations = {name: part[None] for name, part in seen.items()}
        return int(result.module.forward_inference(ActInput(observations)).actions[0])

    random = numpy.random.default_rng(0)
    chance = clicks(lambda seen: int(random.choice(numpy.flatnonzero(seen["action_mask"]))))
    print(f"clicks, articles shown at random: {chance:.1%}")
    print(f"clicks, after {result.step:,} visitors:    {clicks(learned):.1%}")
    print("\n".join(result.where))


if __name__ == "__main__":
    main()
