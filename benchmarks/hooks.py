"""What a hook call costs through HookCalls and through bare pluggy, in one process.

python benchmarks/hooks.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pluggy

from rlplug import AddOn, Algorithm, Module
from rlplug.batch import Batch
from rlplug.hooks import PROJECT, hookimpl
from rlplug.hooks.calls import HookCalls
from rlplug.hooks.specs import LearnerHooks
from rlplug.registry import Participant, describe

ROUNDS = 60
CALLS = 2_000


class Learns(Algorithm):
    def build(self) -> Module:
        return Module()

    @hookimpl
    def compute_loss_for_module(self, module_id: str, module: Any, batch: Any) -> float:
        return 1.0


class Adds(AddOn):
    @hookimpl
    def compute_loss_for_module(self, module_id: str, module: Any, batch: Any) -> float:
        return 2.0


def main() -> None:
    learner = SimpleNamespace(extra={"default": {}})
    module, batch = Module(), Batch({})
    print(f"{'':<28}{'HookCalls':>12}{'pluggy':>12}{'ratio':>8}   (CPU µs a call, medians)")
    for addons in (0, 2):
        hooks, manager = _both(addons)
        ours, bare = _interleaved(
            lambda: hooks.compute_loss_for_module("default", module, batch, {}, (), learner),
            lambda: manager.hook.compute_loss_for_module(
                module_id="default",
                module=module,
                extra=None,
                config=None,
                batch={},
                fwd_out={},
                optimizers=(),
                learner=learner,
            ),
        )
        print(f"{f'{addons + 1} implementations':<28}{ours:>12.2f}{bare:>12.2f}{ours / bare:>8.2f}")
    hooks, manager = _both(0)
    ours, bare = _interleaved(
        lambda: hooks.additional_update("default", module, batch, 0, {}, learner),
        lambda: manager.hook.compute_loss_for_module(
            module_id="default",
            module=module,
            extra=None,
            config=None,
            batch={},
            fwd_out={},
            optimizers=(),
            learner=learner,
        ),
    )
    print(f"{'nobody (pluggy: one)':<28}{ours:>12.2f}{bare:>12.2f}{ours / bare:>8.2f}")


def _both(addons: int) -> tuple[HookCalls, pluggy.PluginManager]:
    kinds = [type(f"Adds{index}", (Adds,), {}) for index in range(addons)]
    participants = [Participant(describe(kind.__name__.lower(), kind), kind()) for kind in kinds]
    algorithm = Participant(describe("learns", Learns), Learns())
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(LearnerHooks)
    for one in [algorithm, *participants]:
        manager.register(one.plugin)
    return HookCalls(algorithm, participants), manager


def _interleaved(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float]:
    """Medians over rounds in which the two take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for function, kept in zip((first, second), times, strict=True):
            start = time.process_time()
            for _ in range(CALLS):
                function()
            kept.append((time.process_time() - start) / CALLS * 1e6)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
