"""Measure losses on NumPy arrays against torch: python benchmarks/arrays.py

Forward pass, loss and gradients of one minibatch of PPO and of DQN, as their plugins write them,
on one thread. `rlplug.nn.arrays.LARGEST_MINIBATCH` is the largest with which arrays are ahead.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch
from gymnasium import spaces
from rlplug_dqn.algorithm import DQN
from rlplug_dqn.config import DQNConfig
from rlplug_ppo.algorithm import PPO
from rlplug_ppo.config import PPOConfig
from torch import nn

from rlplug import Batch
from rlplug.nn.arrays import Tape

ROUNDS = 15
WIDTHS = (32, 64, 128, 256, 512)
ROWS = (32, 64, 128, 256, 512)
BOX = spaces.Box(-numpy.inf, numpy.inf, (8,), numpy.float32)
ACTIONS = spaces.Discrete(4)

Loss = Callable[[Batch], Any]


def ppo(width: int, rows: int) -> tuple[nn.Module, Loss, Batch]:
    """The clipped surrogate of separate actor and critic."""
    config = PPOConfig(net_arch=(width, width))
    algorithm = PPO(config)
    module = algorithm.build(BOX, ACTIONS, config)
    batch = Batch(
        {
            "observations": torch.randn(rows, 8),
            "actions": torch.randint(0, 4, (rows,)),
            "log_prob": -torch.rand(rows),
            "advantages": torch.randn(rows),
            "returns": torch.randn(rows),
            "values": torch.randn(rows),
        }
    )

    def loss(batch: Batch) -> Any:
        out = module.forward_train(batch)
        return algorithm.compute_loss_for_module(module, config, batch, out).value

    return module, loss, batch


def dqn(width: int, rows: int) -> tuple[nn.Module, Loss, Batch]:
    """Huber's loss of the actions taken."""
    config = DQNConfig(net_arch=(width, width))
    algorithm = DQN(config)
    module = algorithm.build(BOX, ACTIONS, config, 0)
    batch = Batch(
        {
            "observations": torch.randn(rows, 8),
            "actions": torch.randint(0, 4, (rows,)),
            "targets": torch.randn(rows),
        }
    )

    def loss(batch: Batch) -> Any:
        out = module.forward_train(batch)
        return algorithm.compute_loss_for_module(module, config, batch, out).value

    return module.network, loss, batch


def measure(make: Callable[[int, int], tuple[nn.Module, Loss, Batch]]) -> None:
    """A table of both engines over widths and rows."""
    print(f"\n{make.__name__}: two layers of width, µs per minibatch")
    print(f"{'width':>6}{'rows':>6}{'multiplications':>17}{'torch':>10}{'arrays':>10}{'×':>7}")
    for width in WIDTHS:
        for rows in ROWS:
            network, loss, batch = make(width, rows)
            params = list(network.parameters())
            size = rows * sum(param.numel() for param in params)
            tape = Tape(params)

            def in_torch() -> None:
                torch.autograd.grad(loss(batch), params)

            def on_arrays() -> None:
                with tape:
                    tape.backward(loss(tape.batch(batch)))

            first, second = medians(in_torch, on_arrays, max(2, 4_000_000 // size))
            figures = f"{first:>10.0f}{second:>10.0f}{first / second:>7.2f}"
            print(f"{width:>6}{rows:>6}{size:>17,}{figures}")


def medians(
    one: Callable[[], None], other: Callable[[], None], repeats: int
) -> tuple[float, float]:
    """CPU microseconds of each, side by side."""
    repeats = min(repeats, 20)
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for form, times in zip((one, other), taken, strict=True):
            form()
            start = time.process_time()
            for _ in range(repeats):
                form()
            times.append((time.process_time() - start) / repeats * 1e6)
    return statistics.median(taken[0]), statistics.median(taken[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    measure(ppo)
    measure(dqn)
