"""The learner: owns modules, extras and optimizers, and turns batches into one update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlplug.config.compute import ComputeSection
from rlplug.config.learning import LearnerSection
from rlplug.errors import RequestError, did_you_mean
from rlplug.learner.assembly import assemble
from rlplug.learner.member import Member
from rlplug.learner.optimizers import Optimizers, Registered, schedule_of
from rlplug.learner.stage import Stage
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE, Module
from rlplug.seeding import derive

if TYPE_CHECKING:
    import gymnasium

    from rlplug.batch import Batch
    from rlplug.hooks.calls import HookCalls

__all__ = ["Learner"]


class Learner:
    """Turns one batch per module into one update of every module."""

    def __init__(
        self,
        calls: HookCalls,
        spaces: Mapping[str, tuple[gymnasium.Space[Any], gymnasium.Space[Any]]],
        *,
        seed: int,
        learning: LearnerSection | None = None,
        compute: ComputeSection | None = None,
    ) -> None:
        self.calls = calls
        self.spaces = dict(spaces)
        self.seed = seed
        self.learning = LearnerSection() if learning is None else learning
        self.compute = ComputeSection() if compute is None else compute
        self.device = torch.device("cpu")
        self.timestep = 0
        self.updates = 0
        self.modules: dict[str, Module] = {}
        self.extra: dict[str, dict[str, nn.Module]] = {}
        self.optimizers = Optimizers()
        self._members: dict[str, Member] = {}
        self._stages: dict[str, Stage] = {}
        self._shuffler = torch.Generator().manual_seed(derive(seed, "minibatches"))
        self._prepared = calls.implements("prepare_batch")

    def build(self) -> None:
        """Make modules, extras and optimizers; a second call changes nothing."""
        for module_id in self.spaces:
            if module_id not in self._members:
                self._members[module_id] = assemble(self, module_id)

    def update(
        self,
        batches: Mapping[str, Batch],
        *,
        timestep: int,
        num_iters: int = 1,
        minibatch_size: int = 0,
    ) -> dict[str, dict[str, Any]]:
        """One update: `num_iters` passes in minibatches (0: whole), then what no gradient moves."""
        if timestep != self.timestep:
            self.timestep = timestep
            self.calls.at_step(timestep)
            for one in self.optimizers:
                one.at_step(timestep)
        results: dict[str, dict[str, Any]] = {}
        rows = 0
        for module_id, batch in batches.items():
            member = self._members.get(module_id)
            if member is None:
                raise self._unknown(module_id)
            if self._prepared:
                with torch.no_grad():
                    batch = self.calls.prepare_batch(
                        module_id, member.module, batch, batches, timestep, self
                    )
            metrics: dict[str, Any] = {}
            if member.optimizers:
                stage = self._stages[module_id]
                for _ in range(num_iters):
                    if stage.take(batch):
                        stage.step()
                metrics = stage.finish()
            for plugin, given in self.calls.additional_update(
                module_id, member.module, batch, timestep, metrics, self
            ):
                if plugin == member.algorithm:
                    metrics.update(given)
                else:
                    metrics.update({f"{plugin}/{name}": value for name, value in given.items()})
            results[module_id] = metrics
            rows += batch.rows
        self.updates += 1
        results[ALL_MODULES] = {"steps_trained": rows}
        return results

    def register_optimizer(
        self,
        module_id: str,
        optimizer_name: str,
        optimizer: torch.optim.Optimizer,
        params: Sequence[nn.Parameter],
        lr_or_lr_schedule: Any = None,
    ) -> None:
        """Take in an optimizer; a schedule is `[[step, value], …]` over environment steps."""
        one = Registered(module_id, optimizer_name, self.calls.algorithm.name, optimizer)
        one.lr_schedule = schedule_of(lr_or_lr_schedule)
        self.optimizers.add(one)

    def get_optimizer(
        self, module_id: str = DEFAULT_MODULE, optimizer_name: str = "default"
    ) -> torch.optim.Optimizer:
        """One optimizer by its module and its name."""
        return self.optimizers.get(module_id, optimizer_name).optimizer

    def all_reduce(self, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        """The tensors combined over all learners (`sum`, `mean`, `max`)."""
        return list(tensors)

    def _unknown(self, module_id: str) -> RequestError:
        return RequestError(
            f"the batch holds module {module_id!r}, which the learner does not have. "
            f"{did_you_mean(module_id, self._members).capitalize()}".rstrip(),
            f"it has: {', '.join(self._members)}",
        )
