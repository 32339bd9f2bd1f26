"""The learner: turns batches into updates of all its modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.errors import RequestError, did_you_mean
from rlplug.learner.by_hand import ByHand
from rlplug.learner.epochs import train
from rlplug.learner.joining import average_metrics
from rlplug.learner.results import Reduce, Results, mean_results
from rlplug.learner.witness import digests, refuse_unsaved
from rlplug.optim.unfollowed import Unfollowed
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE

if TYPE_CHECKING:
    from rlplug.learner.episodes import Episode
    from rlplug.learner.member import Member

__all__ = ["Learner"]


_PLAIN = nullcontext()


class Learner(ByHand):
    """Turns one batch per module into one update of every module.

    It can be used by itself: `learner.build()`, then `learner.update(batches, timestep=n)`.
    """

    def update(
        self,
        batches: Mapping[str, Batch],
        *,
        timestep: int,
        num_iters: int = 1,
        minibatch_size: int = 0,
    ) -> Results:
        """One update: `num_iters` passes in minibatches (0: whole), then what no gradient moves."""
        if timestep != self.timestep:
            self._move_to(timestep)
        if num_iters < 1:
            raise RequestError(f"num_iters must be at least 1, got {num_iters}.")
        if minibatch_size < 0:
            raise RequestError(f"minibatch_size must be at least 0, got {minibatch_size}.")
        before = digests(self.calls) if self.updates == 0 else None
        with self.standing:
            results = self._update(batches, num_iters, minibatch_size)
        if before is not None:
            refuse_unsaved(self.calls, before)
        return results

    def _update(self, batches: Mapping[str, Batch], num_iters: int, minibatch_size: int) -> Results:
        prepared = self._prepare(batches)
        work = [
            (self.stages[module_id], batch)
            for module_id, batch in prepared.items()
            if module_id in self.stages
        ]
        if work:
            with torch.autograd.set_detect_anomaly(True) if self.compute.detect_anomaly else _PLAIN:
                train(self, work, num_iters, minibatch_size)
            self.precision.update_finished()
        self.updates += 1
        return self._finish(prepared, bool(work))

    def update_from_batch(
        self,
        batch: Batch | Mapping[str, Batch],
        *,
        timestep: int | None = None,
        num_iters: int = 1,
        minibatch_size: int = 0,
        reduce_fn: Reduce | None = mean_results,
    ) -> Results | list[Results]:
        """`update` for one batch or several; without `timestep` its rows are counted as steps.

        `reduce_fn` makes one mapping of the results of all minibatches; None gives them as a list,
        what the update as a whole reports in the last.
        """
        batches = {DEFAULT_MODULE: batch} if isinstance(batch, Batch) else batch
        for name, one in batches.items():
            if not isinstance(one, Batch):
                raise RequestError(
                    f"an update takes a Batch, or Batches by module id; {name!r} is a "
                    f"{type(one).__name__}.",
                    "try: Batch(columns)",
                )
        if timestep is None:
            timestep = self.timestep + sum(one.rows for one in batches.values())
        self.keeps_parts = reduce_fn is not mean_results
        try:
            whole = self.update(
                batches, timestep=timestep, num_iters=num_iters, minibatch_size=minibatch_size
            )
        finally:
            self.keeps_parts = False
        if reduce_fn is mean_results:
            return whole
        parts = [*self._parts(), whole]
        return parts if reduce_fn is None else reduce_fn(parts)

    def update_from_episodes(
        self,
        episodes: Sequence[Episode],
        *,
        timestep: int | None = None,
        num_iters: int = 1,
        minibatch_size: int = 0,
        reduce_fn: Reduce | None = mean_results,
    ) -> Results | list[Results]:
        """`update_from_batch` for episodes, complete or cut; each goes to its module."""
        from rlplug.learner.episodes import batches_of

        return self.update_from_batch(
            batches_of(episodes),
            timestep=timestep,
            num_iters=num_iters,
            minibatch_size=minibatch_size,
            reduce_fn=reduce_fn,
        )

    def additional_update(
        self,
        batches: Mapping[str, Batch],
        *,
        timestep: int,
        module_ids: Collection[str] | None = None,
    ) -> Results:
        """Only what no gradient moves, for all modules of the batch or the named ones."""
        if timestep != self.timestep:
            self._move_to(timestep)
        results: Results = {}
        for module_id, batch in batches.items():
            if module_ids is None or module_id in module_ids:
                results[module_id] = {}
                self._add(self.member(module_id), batch, results[module_id])
        return results

    def should_module_be_updated(self, module_id: str, batch: Batch) -> bool:
        """Whether this batch trains this module."""
        wanted = self.modules_to_train
        if not self.member(module_id).trainable:
            return False
        if wanted is None:
            return True
        if callable(wanted):
            return bool(wanted(module_id, batch))
        # A set that names nobody would train nothing, and say nothing.
        return module_id in {self.member(one).module_id for one in wanted}

    def _move_to(self, timestep: int) -> None:
        self.timestep = timestep
        self.calls.at_step(timestep)
        for one in self.followers:
            one.at_step(timestep)

    def _prepare(self, batches: Mapping[str, Batch]) -> dict[str, Batch]:
        """The batches of the modules to train, on the device, with everybody's columns."""
        members = self.members
        chosen: dict[str, Batch] = {}
        placed: dict[str, Batch] = {}
        for module_id, batch in batches.items():
            member = members.get(module_id)
            if member is None:
                raise self._unknown(module_id)
            batch.check()
            placed[module_id] = self._placed(member, batch)
            everyone = self.modules_to_train is None and member.trainable
            if everyone or self.should_module_be_updated(module_id, batch):
                chosen[module_id] = placed[module_id]
        if not self.prepares:
            return chosen
        with Unfollowed():
            for module_id, batch in chosen.items():
                given = self.calls.prepare_batch(
                    module_id, members[module_id].module, batch, placed, self.timestep, self
                )
                if given is not batch:
                    given.check()
                chosen[module_id] = given
        return chosen

    def _placed(self, member: Member, batch: Batch) -> Batch:
        if member.optimizers:
            return batch.to(self.device, self.dtype)
        # A closed form reads NumPy as it came, in its own precision.
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def _finish(self, prepared: Mapping[str, Batch], trained: bool) -> Results:
        results: Results = {}
        rows = 0
        losses: list[Tensor] = []
        for module_id, batch in prepared.items():
            stage = self.stages.get(module_id)
            metrics: dict[str, Any] = {}
            if stage is not None:
                if self.keeps_parts:
                    self.kept_parts[module_id] = stage.history
                metrics = stage.finish()
                if self.peers.size > 1:
                    metrics = average_metrics(self.peers, metrics)
                self.rows[module_id] = stage.take_rows()
                if "loss" in metrics:
                    losses.append(metrics["loss"])
            self._add(self.members[module_id], batch, metrics)
            if stage is not None:
                stage.outside = metrics
            if self.registered_metrics:
                metrics.update(self.registered_metrics.pop(module_id, {}))
            results[module_id] = metrics
            rows += batch.rows
        both: dict[str, Any] = {"steps_trained": rows, "updates": self.updates}
        if losses:
            both["loss"] = sum(losses[1:], losses[0])
        if trained and self.shared_stage is not None:
            both.update(self.shared_stage.finish())
        results[ALL_MODULES] = both
        return results

    def _add(self, member: Member, batch: Batch, metrics: dict[str, Any]) -> None:
        module_id = member.module_id
        for plugin, given in self.calls.additional_update(
            module_id, member.module, batch, self.timestep, metrics, self
        ):
            if plugin == member.algorithm:
                metrics.update(given)
            else:
                metrics.update({f"{plugin}/{name}": value for name, value in given.items()})

    def _parts(self) -> list[Results]:
        """Each minibatch's results of the last update, in order."""
        longest = max((len(kept) for kept in self.kept_parts.values()), default=0)
        parts: list[Results] = [
            {
                module_id: kept[index]
                for module_id, kept in self.kept_parts.items()
                if index < len(kept)
            }
            for index in range(longest)
        ]
        self.kept_parts = {}
        return parts

    def _unknown(self, module_id: str) -> RequestError:
        return RequestError(
            f"the batch holds module {module_id!r}, which the learner does not have. "
            f"{did_you_mean(module_id, self.members, sentence=True)}".rstrip(),
            f"it has: {', '.join(self.members) or 'none: call build() first'}",
        )
