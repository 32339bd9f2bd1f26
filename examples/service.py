"""LinUCB in a service: decide, learn from delayed outcomes, save and load.

python examples/service.py
"""

from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from rlplug_linucb import Layout, LinUCBConfig, LinUCBModule
from safetensors.torch import load_file, save_file

BANNERS = ("summer sale", "free delivery", "newsletter")
FEATURES = ("always", "evening", "on a phone", "bought before")


class BannerService:
    """The interface for a web shop: `decide` for each page, `outcome` for each finished visit."""

    def __init__(self, alpha: float = 0.5) -> None:
        layout = Layout(num_arms=len(BANNERS), context_dim=len(FEATURES))
        self.module = LinUCBModule(layout, LinUCBConfig(alpha=alpha))
        self._random = numpy.random.default_rng(0)

    def decide(self, context: NDArray[numpy.float64]) -> int:
        """The banner to show for one context."""
        return int(self.module.choose(context[None], self._random)[0])

    def outcome(self, context: NDArray[numpy.float64], banner: int, bought: bool) -> None:
        """Learn from one outcome."""
        self.module.update(context[None], numpy.array([banner]), numpy.array([float(bought)]))

    def save(self, path: Path) -> None:
        """Save the module without pickle."""
        save_file(self.module.state_dict(), path)

    def load(self, path: Path) -> None:
        """Load a saved module."""
        self.module.load_state_dict(load_file(path))


def visitor(random: numpy.random.Generator) -> tuple[NDArray[numpy.float64], Any]:
    """A random visitor, and the purchase probability of each banner."""
    context = numpy.array([1.0, *random.integers(0, 2, 3)])
    _, evening, phone, known = context
    return context, (0.1 + 0.3 * evening, 0.1 + 0.3 * phone, 0.35 - 0.3 * known)


def serve(service: BannerService, visits: int, random: numpy.random.Generator) -> float:
    """The purchase rate while serving; outcomes are delayed by 20 visits."""
    waiting: deque[tuple[NDArray[numpy.float64], int, bool]] = deque()
    purchases = 0
    for _ in range(visits):
        context, chances = visitor(random)
        banner = service.decide(context)
        bought = bool(random.random() < chances[banner])
        purchases += bought
        waiting.append((context, banner, bought))
        if len(waiting) > 20:
            service.outcome(*waiting.popleft())
    return purchases / visits


def main() -> None:
    """Serve, restart from a file, and continue serving."""
    random = numpy.random.default_rng(1)
    service = BannerService()
    print(f"purchases, first 500 visits: {serve(service, 500, random):.1%}")
    serve(service, 4_000, random)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "banners.safetensors"
        service.save(path)
        restarted = BannerService()
        restarted.load(path)
    print(f"purchases after a restart:   {serve(restarted, 2_000, random):.1%}")
    for words, context in {"in the evening": [1, 1, 0, 1], "on a phone": [1, 0, 1, 1]}.items():
        scores = restarted.module.score(numpy.array([context], dtype=float))
        best = int(scores.pred_label[0].argmax())
        sure = f"{scores.pred_label[0, best]:.2f} ± {scores.pred_sigma[0, best]:.2f}"
        print(f"known customer {words}: {BANNERS[best]} ({sure})")


if __name__ == "__main__":
    main()
