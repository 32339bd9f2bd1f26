"""What the learner costs beside a bare loop: interleaved, one thread, medians of CPU time.

    OMP_NUM_THREADS=1 python benchmarks/learner.py [--quick]

The bare loop has fused Adam and the same clipping and nothing else. The textbook loop is what
tutorials show: Adam as it comes, five columns indexed per minibatch, losses read as numbers.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import gymnasium
import torch
from torch import Tensor, nn

from rlplug import Algorithm, Batch, Loss, Module, option
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.registry import Participant, describe

ROWS, SIZE, INPUTS, ACTIONS, LIMIT, RATE = 2048, 256, 4, 2, 0.5, 2.5e-4
SPACES = (gymnasium.spaces.Box(-1, 1, (INPUTS,)), gymnasium.spaces.Discrete(ACTIONS))


class Net(Module):
    """Actor and critic of 64-64, as small tasks have them."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.parts = nn.ModuleList(mlp(ACTIONS if n == 0 else 1) for n in range(heads))

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        x = batch["observations"]
        return {str(n): part(x) for n, part in enumerate(self.parts)}


def mlp(out: int) -> nn.Module:
    """A network of 64-64 with tanh."""
    return nn.Sequential(
        nn.Linear(INPUTS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out)
    )


def losses(out: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A clipped policy loss, a value loss, and more value losses for more heads."""
    log_prob = out["0"].log_softmax(1).gather(1, batch["actions"][:, None])[:, 0]
    ratio = (log_prob - batch["log_prob"]).exp()
    advantages = batch["advantages"]
    clipped = ratio.clamp(0.8, 1.2) * advantages
    found = {"0": -torch.min(ratio * advantages, clipped).mean()}
    for name in list(out)[1:]:
        found[name] = (out[name][:, 0] - batch["returns"]).pow(2).mean()
    return found


@attrs.frozen(kw_only=True)
class Options:
    """Of the algorithm below."""

    learning_rate: float = option(RATE, "Step size.")


class Joint(Algorithm):
    """One optimizer for everything."""

    Config = Options

    def build(self) -> Net:
        """Actor and critic."""
        return Net()

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        """The sum of both losses."""
        found = losses(fwd_out, batch)
        terms = {"policy_loss": found["0"], "value_loss": found["1"]}
        return Loss(found["0"] + found["1"], terms=terms)


class Threefold(Algorithm):
    """Three networks, three optimizers, three losses."""

    Config = Options

    def build(self) -> Net:
        """An actor and two critics."""
        return Net(3)

    def configure_optimizers_for_module(self, module: Net) -> Any:
        """One for each."""
        return {
            str(n): torch.optim.Adam(part.parameters(), RATE, fused=True)
            for n, part in enumerate(module.parts)
        }

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        """One loss for each optimizer."""
        return Loss(losses(fwd_out, batch))


class Closed(Algorithm):
    """No gradient: what a closed form pays to the core."""

    def build(self) -> Net:
        """Anything."""
        return Net()

    def configure_optimizers_for_module(self) -> None:
        """None."""

    def additional_update(self, batch: Batch) -> None:
        """The hook itself does nothing, so that only the way there is measured."""


def learner(kind: type[Algorithm], ids: Sequence[str] = ("default",), **sections: Any) -> Learner:
    """A learner of this algorithm."""
    plugin = kind()
    made = Learner(
        HookCalls(Participant(describe(kind.__name__.lower(), kind), plugin, plugin.config)),
        dict.fromkeys(ids, SPACES),
        seed=0,
        **{"learning": LearnerSection(max_grad_norm=LIMIT), **sections},
    )
    made.build()
    return made


def experience(rows: int, seed: int = 0) -> dict[str, Tensor]:
    """Columns of a rollout."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "observations": torch.randn(rows, INPUTS, generator=generator),
        "actions": torch.randint(ACTIONS, (rows,), generator=generator),
        "log_prob": torch.full((rows,), -0.7),
        "advantages": torch.randn(rows, generator=generator),
        "returns": torch.randn(rows, generator=generator),
    }


def bare(columns: dict[str, Tensor], heads: int = 2) -> Callable[[], None]:
    """Nothing but what the numbers need."""
    net = Net(heads)
    params = list(net.parameters())
    adam = torch.optim.Adam(params, RATE, fused=True)

    def one_pass() -> None:
        order = torch.randperm(ROWS)
        cut = {name: column[order].split(SIZE) for name, column in columns.items()}  # type: ignore[no-untyped-call] # untyped in torch
        for n in range(ROWS // SIZE):
            batch = {name: parts[n] for name, parts in cut.items()}
            out = {str(k): part(batch["observations"]) for k, part in enumerate(net.parts)}
            found = losses(out, batch)
            adam.zero_grad()
            torch.stack(list(found.values())).sum().backward()  # type: ignore[no-untyped-call] # untyped in torch
            nn.utils.clip_grad_norm_(params, LIMIT)
            adam.step()

    return one_pass


def textbook(columns: dict[str, Tensor], heads: int = 2) -> Callable[[], None]:
    """As tutorials write it; with more than two heads, an optimizer for each."""
    net = Net(heads)
    groups = [list(net.parameters())] if heads == 2 else [list(p.parameters()) for p in net.parts]
    adams = [torch.optim.Adam(group, RATE) for group in groups]

    def one_pass() -> None:
        seen = []
        order = torch.randperm(ROWS)
        for start in range(0, ROWS, SIZE):
            rows = order[start : start + SIZE]
            batch = {name: column[rows] for name, column in columns.items()}
            out = {str(k): part(batch["observations"]) for k, part in enumerate(net.parts)}
            found = losses(out, batch)
            parts = list(found.values()) if heads > 2 else [torch.stack(list(found.values())).sum()]
            for adam, group, loss in zip(adams, groups, parts, strict=True):
                adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call] # untyped in torch
                nn.utils.clip_grad_norm_(group, LIMIT)
                adam.step()
            seen.append([loss.item() for loss in found.values()])

    return one_pass


def ours(made: Learner, columns: dict[str, Tensor]) -> Callable[[], None]:
    """One pass over the same rows in the same minibatches."""
    batch = Batch(columns)

    def one_pass() -> None:
        made.update({"default": batch}, timestep=0, minibatch_size=SIZE)

    return one_pass


def interleaved(loops: Mapping[str, Callable[[], None]], times: int) -> dict[str, float]:
    """Median CPU seconds of each, taken in turns: a busy machine takes turns as well.

    In each turn it runs twice and the second time counts, as updates follow one another in a run:
    the first one finds the caches full of what the others left there.
    """
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        for _ in range(5):
            loop()
    for _ in range(times):
        for name, loop in loops.items():
            loop()
            start = time.process_time()
            loop()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


def show(title: str, medians: Mapping[str, float], per: int, unit: str) -> None:
    """A table of microseconds, and of ratios to the first row."""
    print(f"\n{title}")
    first = next(iter(medians.values()))
    for name, seconds in medians.items():
        print(f"  {name:<34} {seconds / per * 1e6:9.1f} µs/{unit}   {first / seconds:5.2f} x")


def closed(times: int) -> dict[str, float]:
    """Updates of a module without optimizers, and the hook alone."""
    made = learner(Closed)
    batch = Batch({name: column.numpy() for name, column in experience(1).items()})
    batches = {"default": batch}
    hook = made.calls.algorithm.plugin.additional_update

    def update() -> None:
        for _ in range(1000):
            made.update(batches, timestep=0)

    def alone() -> None:
        for _ in range(1000):
            hook(batch)

    return interleaved({"the hook alone": alone, "through the learner": update}, times)


def main() -> None:
    """Print all tables."""
    torch.set_num_threads(1)
    times = 30 if "--quick" in sys.argv else 150
    columns = experience(ROWS)
    compiled = ComputeSection(compile=True, device="cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\..*")
        loops = {
            "bare loop, fused Adam": bare(columns),
            "textbook loop": textbook(columns),
            "rlplug": ours(learner(Joint), columns),
            "rlplug, compiled": ours(learner(Joint, compute=compiled), columns),
        }
        medians = interleaved(loops, times)
        minibatches = ROWS // SIZE
        show("One optimizer, batch 256, 64-64", medians, minibatches, "minibatch")
        over = (medians["rlplug"] - medians["bare loop, fused Adam"]) / minibatches * 1e6
        print(f"  bookkeeping over the bare loop: {over:+.1f} µs per minibatch (at most 60)")
        three = {
            "textbook loop, three optimizers": textbook(columns, 3),
            "rlplug": ours(learner(Threefold), columns),
            "rlplug, compiled": ours(learner(Threefold, compute=compiled), columns),
        }
        show("Three optimizers", interleaved(three, times), minibatches, "minibatch")
    show("A module without optimizers", closed(times), 1000, "update")


if __name__ == "__main__":
    main()
