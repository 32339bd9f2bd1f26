"""A learner on the bench: it plays, learns and is looked at, apart from everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.config.sections import ComputeSection
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE, Module
from rlplug.registry import Participant
from rlplug.testing.draws import Draws
from rlplug.testing.experience import Player

if TYPE_CHECKING:
    from rlplug.testing.cases import Case
    from rlplug.testing.subject import Subject

__all__ = ["Bench", "bench_of", "copied", "host_of"]

Results = Mapping[str, Mapping[str, Any]]


class Bench:
    """One learner of one module per case, with players of its own.

    Global generators are its own, too: what else happens in the process makes no difference.
    """

    def __init__(
        self,
        algorithm: Participant,
        addons: Sequence[Participant],
        cases: Mapping[str, Case],
        *,
        seed: int = 0,
        compute: ComputeSection | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.cases = dict(cases)
        self.seed = seed
        self.draws = Draws(seed)
        self.timestep = 0
        with self.draws():
            self.calls = HookCalls(algorithm, addons)
            self.learner = Learner(
                self.calls,
                {name: (one.observation_space, one.action_space) for name, one in cases.items()},
                seed=seed,
                compute=compute or ComputeSection(device="cpu"),
            )
            self.learner.build()
            self.players = {
                name: Player(one, self.learner.modules[name], seed=seed)
                for name, one in self.cases.items()
            }

    @property
    def module(self) -> Module:
        """The only module, or the first."""
        return next(iter(self.learner.modules.values()))

    def play(self, steps: int = 8) -> dict[str, Batch]:
        """The next batch of every module."""
        with self.draws():
            return {name: player.batch(steps) for name, player in self.players.items()}

    def update(self, batches: Batch | Mapping[str, Batch]) -> Results:
        """One update."""
        given = {DEFAULT_MODULE: batches} if isinstance(batches, Batch) else batches
        self.timestep += sum(batch.rows for batch in given.values())
        with self.draws():
            return self.learner.update(given, timestep=self.timestep)

    def live(self, updates: int, steps: int = 8) -> list[Results]:
        """Play and learn in turns."""
        return [self.update(self.play(steps)) for _ in range(updates)]

    def weights(self) -> dict[str, Any]:
        """All parameters and buffers of modules and extras, copied."""
        parts: dict[str, Any] = {}
        for module_id, module in self.learner.modules.items():
            parts[module_id] = copied(module.state_dict())
            for plugin, extra in self.learner.extra.get(module_id, {}).items():
                parts[f"{module_id}.{plugin}"] = copied(extra.state_dict())
        return parts

    def state(self) -> dict[str, Any]:
        """All that the next update depends on, apart from the global generators, copied."""
        state: dict[str, Any] = copied(self.learner.get_state())
        state.pop("random")
        return state

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that want to be trained, by name, of modules and extras."""
        return {
            f"{module_id}.{name}" if len(self.learner.members) > 1 else name: param
            for module_id, member in self.learner.members.items()
            for name, param in member.named.items()
            if param.requires_grad
        }

    def gradients(self, batch: Batch) -> tuple[float, dict[nn.Parameter, Tensor]] | None:
        """The loss of a batch and its gradients, without a step; None if nobody has a loss."""
        learner = self.learner
        name = next(iter(learner.modules))
        placed = batch.to(learner.device, learner.dtype)
        with self.draws():
            with torch.no_grad():
                everybody = {name: placed}
                prepared = self.calls.prepare_batch(
                    name, self.module, placed, everybody, self.timestep, learner
                )
            losses = learner.compute_loss(learner.forward_train({name: prepared}), {name: prepared})
            if ALL_MODULES not in losses:
                return None
            return float(losses[ALL_MODULES].detach()), learner.compute_gradients(losses)


def bench_of(
    subject: Subject,
    case: Case | Mapping[str, Case] | None = None,
    *,
    seed: int = 0,
    config: Any = None,
    kind: type[Any] | None = None,
    beside: Sequence[Participant] = (),
    before: Sequence[Participant] = (),
    host: Participant | None = None,
    compute: ComputeSection | None = None,
) -> Bench:
    """A bench for a plugin: an algorithm by itself, an add-on with an algorithm of the kit."""
    chosen = subject.case() if case is None else case
    cases = chosen if isinstance(chosen, Mapping) else {DEFAULT_MODULE: chosen}
    own = subject.participant(config, kind)
    if not subject.is_addon:
        return Bench(own, [*before, *beside], cases, seed=seed, compute=compute)
    algorithm = host_of() if host is None else host
    return Bench(algorithm, [*before, own, *beside], cases, seed=seed, compute=compute)


def host_of(kind: type[Any] | None = None) -> Participant:
    """A small algorithm of the kit, ready to take part."""
    from rlplug.testing.algorithms import PolicyGradient
    from rlplug.testing.subject import Subject

    return Subject.of(PolicyGradient if kind is None else kind).participant()


def copied(tree: Any) -> Any:
    """The tree with every tensor copied."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, Mapping):
        return {name: copied(part) for name, part in tree.items()}
    if isinstance(tree, list):
        return [copied(part) for part in tree]
    return tuple(copied(part) for part in tree) if isinstance(tree, tuple) else tree
