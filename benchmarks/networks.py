"""Measure networks against their plain forms: python benchmarks/networks.py

All forms of one table run in turn, in one process on one thread; each figure is a median of rounds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug.nn import ActorCritic, Body, Fragments, Memory, Network, NetworkOptions, QHead, project

ROUNDS = 15
BOX = spaces.Box(-numpy.inf, numpy.inf, (4,))


def measure(title: str, repeats: int, **forms: Callable[[], object]) -> dict[str, float]:
    """CPU microseconds of each form; the ratio is that of the first form to each."""
    for form in forms.values():
        form()
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(ROUNDS):
        for name, form in forms.items():
            start = time.process_time()
            for _ in range(repeats):
                form()
            taken[name].append((time.process_time() - start) / repeats * 1e6)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    first = next(iter(medians.values()))
    print(f"\n{title}")
    for name, median in medians.items():
        print(f"  {name:<28}{median:>12.1f} µs{first / median:>9.2f} ×")
    return medians


def acting() -> float:
    """8 observations of CartPole through a policy of 64-64."""
    network = ActorCritic(BOX, spaces.Discrete(2))
    observations = numpy.random.default_rng(0).standard_normal((8, 4)).astype(numpy.float32)
    random = numpy.random.default_rng(0)
    distribution = network.distribution
    plain = nn.Sequential(
        *(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    )

    @torch.no_grad()
    def eager() -> object:
        return plain(torch.from_numpy(observations)).numpy()

    @torch.no_grad()
    def sampled() -> object:
        logits = plain(torch.from_numpy(observations))
        actions: Tensor = torch.distributions.Categorical(logits=logits).sample()  # type: ignore[no-untyped-call] # untyped in torch
        return actions.numpy()

    medians = measure(
        "Acting: 8 × CartPole, 64-64 tanh, logits",
        500,
        eager_torch=eager,
        rlplug=lambda: network.act(observations),
    )
    measure(
        "The same, with actions drawn",
        500,
        torch_distributions=sampled,
        rlplug=lambda: distribution.sample(network.act(observations)[0], random),
    )
    return medians["eager_torch"] / medians["rlplug"]


def crossover() -> None:
    """Where torch would overtake NumPy."""
    for rows, width in ((8, 256), (64, 256), (256, 256), (256, 512), (1024, 512)):
        network = Network(Body(BOX, NetworkOptions(net_arch=(width, width))), QHead(width, 2))
        observations = numpy.zeros((rows, 4), numpy.float32)
        plan = network._plan(False)
        assert plan is not None
        repeats = max(3, 20_000_000 // (rows * plan.weights))
        measure(
            f"NumPy or torch: {rows} rows, {width}-{width}, {rows * plan.weights:,} products",
            repeats,
            torch=lambda: network._act_in_torch(observations, None, False),
            numpy=lambda: plan.forward(observations, None),
        )


def memory() -> float:
    """An LSTM of 64 over 128 × 8 steps, episodes ending one step in 25."""
    times, envs, size = 128, 8, 64
    layer = Memory(size, size)
    torch_layer = layer.layer
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(envs, times, size, generator=generator)
    begins = torch.rand(envs, times, generator=generator) < 0.04
    begins[:, 0] = True
    start = begins.reshape(-1).nonzero().squeeze(1)
    fragments = Fragments(start, torch.cat([start[1:], torch.tensor([envs * times])]))
    flat = features.flatten(0, 1)
    keep = (~begins).float().t().unsqueeze(-1)

    def stepping() -> Tensor:
        hidden = cell = torch.zeros(1, envs, size)
        out = []
        for step in range(times):
            state = (hidden * keep[step], cell * keep[step])
            one, (hidden, cell) = torch_layer(features[:, step].unsqueeze(0), state)
            out.append(one)
        return torch.cat(out).transpose(0, 1).flatten(0, 1)

    def at_once() -> Tensor:
        hidden: Tensor = layer(flat, fragments)[0]
        return hidden

    torch.testing.assert_close(stepping(), at_once())

    def trained(form: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(form().sum(), list(layer.parameters()))

    def watched(form: Callable[[], Tensor]) -> Callable[[], object]:
        return torch.no_grad()(form)

    title = f"LSTM of {size} over {times} × {envs}, {len(start)} fragments"
    medians = measure(f"{title}, forward", 3, stepping=watched(stepping), one_pass=watched(at_once))
    both = measure(
        f"{title}, forward and backward", 2, stepping=trained(stepping), one_pass=trained(at_once)
    )
    return min(table["stepping"] / table["one_pass"] for table in (medians, both))


def projection() -> float:
    """Distributions of 51 atoms, 128 rows."""
    rows, atoms = 128, 51
    support = torch.linspace(-10, 10, atoms)
    chances = torch.softmax(torch.randn(rows, atoms), -1)
    positions = torch.randn(rows, 1) + 0.99 * support
    spacing = 20 / (atoms - 1)

    def index_add() -> Tensor:
        places = (positions.clamp(-10, 10) + 10) / spacing
        lower, upper = places.floor().clamp(0, atoms - 1), places.ceil().clamp(0, atoms - 1)
        to_lower = (upper + (lower == upper).float() - places) * chances
        to_upper = (places - lower) * chances
        out = torch.zeros(rows * atoms)
        offset = (torch.arange(rows) * atoms).unsqueeze(1)
        out.index_add_(0, (lower.long() + offset).reshape(-1), to_lower.reshape(-1))
        out.index_add_(0, (upper.long() + offset).reshape(-1), to_upper.reshape(-1))
        return out.reshape(rows, atoms)

    torch.testing.assert_close(index_add(), project(chances, positions, support))
    medians = measure(
        "Projection of 128 × 51",
        100,
        index_add=index_add,
        rlplug=lambda: project(chances, positions, support),
    )
    return medians["index_add"] / medians["rlplug"]


def main() -> int:
    """Print all tables and whether each figure holds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    figures = {
        "acting at least 3 × faster than eager torch": (acting(), 3),
        "LSTM in one pass at least 5 × faster than stepping": (memory(), 5),
        "projection no slower than index_add": (projection(), 1),
    }
    if "--crossover" in sys.argv:
        crossover()
    print()
    for words, (ratio, wanted) in figures.items():
        print(f"{'holds' if ratio >= wanted else 'FAILS'}  {words}: {ratio:.2f}")
    return int(any(ratio < wanted for ratio, wanted in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
