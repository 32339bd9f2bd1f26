"""The learner: turns batches into updates of all its modules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import filterfalse
from operator import attrgetter, itemgetter
from time import perf_counter
from typing import Any

from gymnasium import spaces
from torch import Tensor, no_grad
from torch.autograd import set_detect_anomaly

from rlplug.batch import Batch
from rlplug.batch.episodes import Episode, batches_of
from rlplug.batch.nested import tree_map
from rlplug.errors import RequestError
from rlplug.learner.actions import discrete_actions
from rlplug.learner.arguments import check_batches, check_bool, check_ids
from rlplug.learner.by_hand import ByHand
from rlplug.learner.losses import Reduce, Results, as_tensors, mean_results, reduced
from rlplug.learner.member import Member
from rlplug.learner.module_update import ModuleUpdate
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.learner.state import plugin_digests, refuse_unsaved
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE
from rlplug.quantities import is_whole_number
from rlplug.spaces import AnySpace, shape_mismatch, without_action_mask

__all__ = ["Learner"]

_LOG = logging.getLogger("rlplug")


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
        minibatch_size: int | None = None,
    ) -> Results:
        """One update: `num_iters` passes in minibatches (None or 0: the whole batch)."""
        if self.updates and not self.module_updates and self.shared_update is None:
            return self._update_in_closed_form(batches, timestep)
        self._check(batches, num_iters, minibatch_size, timestep)
        before = plugin_digests(self.calls) if self.updates == 0 else None
        # Of add-ons nobody knows what they put in place of a weight in the midst of an update.
        frozen = _NOTHING if self.calls.addons else self._frozen_weights
        watched = set_detect_anomaly(True) if self.compute.detect_anomaly else _NOTHING
        with self._at(timestep), frozen, watched:
            prepared = self._prepare(batches)
            for window in self._windows(prepared, num_iters, minibatch_size or 0):
                for ready in self._turns(window):
                    parts = self._evaluate(ready)
                    self._step(parts, ready)
                self._finish(window)
            if self.precision.scaler is not None:
                self.precision.update_finished()
            self.updates += 1
            results = self._results(prepared)
            if before is not None:
                refuse_unsaved(self.calls, before)
        return results

    def _update_in_closed_form(self, batches: Mapping[str, Batch], timestep: int) -> Results:
        """An update without optimizers; the first one has shown what batches are like."""
        before, updates = self.timestep, self.updates
        try:
            if timestep != before:
                self._set_timestep(timestep)
            prepared = self._prepare(batches)
            self.updates += 1
            return self._results(prepared)
        except BaseException:
            self.updates = updates
            self._set_timestep(before)
            raise

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile of the parts of an update."""
        parts = ("_prepare", "prepare batch"), ("_evaluate", "gradients"), ("_step", "optimizer")
        for method, phase in parts:
            setattr(self, method, record(phase, getattr(self, method)))

    # -- the steps of an update ----------------------------------------------------------------

    def _check(
        self,
        batches: Mapping[str, Batch],
        num_iters: int = 1,
        minibatch_size: int | None = None,
        timestep: int = 0,
    ) -> None:
        """Refuse what cannot be an update, before anything is changed."""
        size = 0 if minibatch_size is None else minibatch_size
        _check_count("num_iters", num_iters, 1)
        _check_count("minibatch_size", size, 0)
        _check_count("timestep", timestep, 0)
        check_batches(batches)
        for module_id, batch in batches.items():
            member = self.member(module_id)
            if (
                not member.has_forward
                and member.optimizers
                and self.can_module_be_updated(module_id)
            ):
                member.check_forward()
            batch.check()
            self._check_observations(module_id, batch)
            if "actions" in batch:
                self._check_actions(member, batch)
        # Whoever gave a set may have added to it.
        self._check_to_train(self.modules_to_train)
        if self.updates == 0:
            self._tell_who_is_not_trained(batches)

    def _tell_who_is_not_trained(self, batches: Iterable[str]) -> None:
        """Warn of modules with a loss and no optimizer, of which nobody else would say a word."""
        losses = {one.name for one in self.calls.implementations("compute_loss_for_module")}
        members = {module_id: self.members[module_id] for module_id in batches}
        for module_id, member in members.items():
            if member.optimizers or member.algorithm not in losses:
                continue
            own = [
                param
                for name, param in member.named.items()
                if param.requires_grad and member.owners[name] == member.algorithm
            ]
            if own and not any(id(param) in member.shared for param in own):
                _LOG.warning(
                    "rlplug: nothing trains module %r: plugin %r returned no optimizer for it in "
                    "'configure_optimizers_for_module'. For ALL_MODULES it is asked for parameters "
                    "that modules share alone.",
                    module_id,
                    member.algorithm,
                )

    def _prepare(self, batches: Mapping[str, Batch]) -> dict[str, Batch]:
        """The batches of the modules to train, on the device, with everybody's columns."""
        chosen: dict[str, Batch] = {}
        placed: dict[str, Batch] = {}
        device = self.precision.device
        for module_id, batch in batches.items():
            try:
                if self.members[module_id].optimizers:
                    batch = batch.to(device, self.dtype)
                elif device.type != "cpu":
                    # A closed form reads NumPy as it came, in its own precision.
                    batch = batch.to(device)
            except RequestError as error:
                error.add_hint(f"it is the batch for module {module_id!r}")
                raise
            placed[module_id] = batch
            if self.should_module_be_updated(module_id, batch):
                chosen[module_id] = batch
        if not self.calls.implements("prepare_batch"):
            return chosen
        began = perf_counter()
        with no_grad():
            for module_id, batch in chosen.items():
                member = self.members[module_id]
                if not member.is_torch:
                    continue
                prepare = partial(
                    self.calls.prepare_batch,
                    module_id,
                    member.module,
                    batches=placed,
                    timestep=self.timestep,
                    learner=self,
                )
                update = self.module_updates.get(module_id)
                run = prepare if update is None else partial(self._engines.prepare, update, prepare)
                chosen[module_id] = run(batch)
                chosen[module_id].check()
        self.prepare_seconds += perf_counter() - began
        return chosen

    def _windows(
        self, batches: Mapping[str, Batch], num_iters: int, minibatch_size: int
    ) -> Iterator[list[ModuleUpdate]]:
        """The modules that take part in each step, with their minibatches of it."""
        together = self.learning.accumulate
        live: dict[ModuleUpdate, Batch] = {}
        for module_id, batch in batches.items():
            if module_id in self.module_updates:
                live[self.module_updates[module_id]] = batch
        for update in live:
            update.stopped = False
        for _ in range(num_iters):
            epoch: dict[ModuleUpdate, list[Batch]] = {}
            for update, batch in live.items():
                epoch[update] = update.cut(batch, minibatch_size)
            longest = max(map(len, epoch.values()), default=0)
            if self.learning.cycle_minibatches:
                for update, parts in epoch.items():
                    while len(parts) < longest:
                        again = update.cut(live[update], minibatch_size)
                        parts += again[: longest - len(parts)]
            if self.process_group.size > 1:
                longest = self.process_group.most(longest)
            for start in range(0, longest, together):
                window = list(filterfalse(_STOPPED, epoch))
                if not window:
                    break
                for update in window:
                    update.begin(epoch[update][start : start + together])
                if self.shared_update is not None:
                    self.shared_update.begin([])
                yield window
            for update in epoch:
                update.finish_epoch()
                if update.stopped:
                    del live[update]
            if self.shared_update is not None:
                self.shared_update.finish_epoch()

    def _turns(self, window: list[ModuleUpdate]) -> Iterator[Ready]:
        """The optimizers that act at once: all whose turn it is in their cycle, or one by one.

        What modules share moves with all others, or in a turn of its own, the last.
        """
        shared = [] if self.shared_update is None else [self.shared_update]
        acting: Ready = {}
        for update in (*window, *shared):
            acting[update] = update.scheduled()
        if self.learning.optimizers == "together":
            yield acting
            return
        turns = range(max(len(acting[update]) for update in window))
        for turn in turns:
            live = [one for one in window if not one.stopped and len(acting[one]) > turn]
            if live:
                yield {one: [acting[one][turn]] for one in live}
        live = [one for one in window if not one.stopped]
        if shared and live:
            yield {**{one: [] for one in live}, shared[0]: acting[shared[0]]}

    def _evaluate(self, ready: Ready, *, again: bool = False) -> list[ModuleUpdate]:
        """Losses, gradients, hooks and clipping of one step; the modules that step."""
        shared = self.shared_update
        for update, optimizers in ready.items():
            update.start(optimizers, again=again)
        if shared is not None and shared not in ready and not again:
            # Its gradients are of no use in this turn, but they are computed with the others.
            shared.start([])
        window = list(ready)
        if shared in ready:
            window.remove(shared)
        self._engines.gradients(window)
        for update in window:
            update.normalize()
        if self.process_group.size > 1:
            self.process_group.average(window, shared)
        parts = list(filter(_WEIGHT, window))
        if shared is not None and shared in ready and parts:
            shared.take_part()
            parts.append(shared)
        for update in parts:
            self._postprocess(update)
            update.clip()
        return parts

    def _step(self, parts: list[ModuleUpdate], ready: Ready) -> None:
        """Step the optimizers; one that needs a closure evaluates its module again."""
        for update in parts:
            own = {update: ready[update]}
            update.step(partial(self._evaluate, own, again=True))

    def _finish(self, window: list[ModuleUpdate]) -> None:
        """Advance cycles and scaler; then targets, which follow what modules share as well."""
        finished = list(filter(_STEPPED, window))
        if self.shared_update is not None and finished:
            finished.append(self.shared_update)
        for update in finished:
            update.advance()
            update.update_targets(self.timestep)
        if self.precision.scaler is not None:
            self.precision.stepped()

    def _results(self, prepared: Mapping[str, Batch]) -> Results:
        """Averages over minibatches, `additional_update`, and sums under ALL_MODULES."""
        results: Results = {}
        losses = []
        rows = 0
        for module_id, batch in prepared.items():
            rows += batch.rows
            update = self.module_updates.get(module_id)
            metrics: dict[str, Any] = {}
            if update is not None:
                metrics, self.rows[module_id] = update.take_results()
                if self.process_group.size > 1:
                    metrics = self.process_group.average_metrics(metrics)
                if any(map(self.calls.implements, _METRIC_HOOKS)):
                    metrics = as_tensors(metrics)
                if "loss" in metrics:
                    losses.append(metrics["loss"])
            self._additional_update(self.members[module_id], batch, metrics)
            if update is not None:
                update.update_metrics = metrics
            metrics.update(self.registered_metrics.pop(module_id, {}))
            results[module_id] = metrics
        both: dict[str, Any] = {
            "steps_trained": rows,
            "updates": self.updates,
        }
        if losses:
            both["loss"] = sum(losses[1:], losses[0])
        if self.shared_update is not None and not self.module_updates.keys().isdisjoint(prepared):
            both.update(self.shared_update.take_results()[0])
        both.update(self.registered_metrics.pop(ALL_MODULES, {}))
        results[ALL_MODULES] = both
        return results

    # -- other ways to call it -----------------------------------------------------------------

    def update_from_batch(
        self,
        batch: Batch | Mapping[str, Batch],
        *,
        timestep: int | None = None,
        num_iters: int = 1,
        minibatch_size: int | None = None,
        reduce_fn: Reduce | None = mean_results,
    ) -> Results | list[Results]:
        """`update` for one batch or several; without `timestep` its rows are counted as steps.

        `reduce_fn` makes one mapping of the results of all minibatches, to which what the update as
        a whole reports is added: learning rates, metrics of `additional_update`, sums under
        ALL_MODULES. None gives a list with one mapping per minibatch, and nothing besides.
        """
        if reduce_fn is not None and not callable(reduce_fn):
            raise RequestError(
                f"reduce_fn is a {type(reduce_fn).__name__}.",
                "give a function of the minibatches' results, or None for all of them",
            )
        batches = {DEFAULT_MODULE: batch} if isinstance(batch, Batch) else batch
        check_batches(batches)
        before = self.timestep
        if timestep is None:
            timestep = self.timestep + sum(one.rows for one in batches.values())
        whole = self.update(
            batches, timestep=timestep, num_iters=num_iters, minibatch_size=minibatch_size
        )
        if reduce_fn is mean_results:
            return whole
        histories = {
            module_id: self.module_updates[module_id].last_history
            for module_id in batches
            if module_id in self.module_updates and module_id in whole
        }
        try:
            return reduced(whole, histories, reduce_fn)
        except BaseException:
            self._set_timestep(before)
            raise

    def prepare_batches(self, batches: Mapping[str, Batch]) -> dict[str, Batch]:
        """The batches as loss hooks get them: on the device, with what `prepare_batch` adds."""
        self._check(batches)
        return self._prepare(batches)

    def update_from_episodes(
        self,
        episodes: Sequence[Episode],
        *,
        timestep: int | None = None,
        num_iters: int = 1,
        minibatch_size: int | None = None,
        reduce_fn: Reduce | None = mean_results,
    ) -> Results | list[Results]:
        """`update_from_batch` for episodes, complete or cut; each goes to its module."""
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
        check_batches(batches)
        if module_ids is not None:
            check_ids("module_ids", module_ids, "or None for all of the batches")
        for module_id in batches if module_ids is None else module_ids:
            self.member(module_id)
        _check_count("timestep", timestep, 0)
        results: Results = {}
        with self._at(timestep):
            for module_id, batch in batches.items():
                if module_ids is None or module_id in module_ids:
                    results[module_id] = {}
                    self._additional_update(self.member(module_id), batch, results[module_id])
        return results

    def should_module_be_updated(self, module_id: str, batch: Batch) -> bool:
        """Whether this batch trains this module."""
        wanted = self.modules_to_train
        if wanted is None:
            return self.member(module_id).trainable
        if not self.can_module_be_updated(module_id):
            return False
        if not callable(wanted):
            return True
        answer: Any = wanted(module_id, batch)
        if isinstance(answer, Tensor) and not answer.dim():
            answer = answer.item()
        check_bool(f"what the function modules_to_train gave for module {module_id!r}", answer)
        return bool(answer)

    def can_module_be_updated(self, module_id: str) -> bool:
        """Whether any batch can train this module."""
        wanted = self.modules_to_train
        if not self.member(module_id).trainable:
            return False
        if wanted is None or callable(wanted):
            return True
        # A set that names nobody would train nothing, and say nothing.
        return module_id in {self.member(one).module_id for one in wanted}

    # -- inside --------------------------------------------------------------------------------

    @contextmanager
    def _at(self, timestep: int) -> Iterator[None]:
        """Update at this step; what fails leaves `timestep` and `updates`, and no results."""
        before, updates = self.timestep, self.updates
        try:
            if timestep != before:
                self._set_timestep(timestep)
            yield
        except BaseException:
            self.updates = updates
            self._set_timestep(before)
            for update in self._all_updates().values():
                update.forget_results()
            raise

    def _check_observations(self, module_id: str, batch: Batch) -> None:
        """Refuse observations of another shape: flattened, they would be other rows."""
        space = self.training_spaces.get(module_id, self.spaces.get(module_id, _NO_SPACES)[0])
        if space is None:
            return
        for name in _OBSERVATIONS:
            if name in batch:
                wrong = _mismatch(space, batch.columns[name])
                if wrong:
                    raise RequestError(
                        f"{name!r} of the batch for module {module_id!r} is {wrong}.",
                        "give observations of the module's space, one in each row",
                    )

    def _check_actions(self, member: Member, batch: Batch) -> None:
        """Refuse actions that are none of the module's space."""
        module_id = member.module_id
        space = self.spaces.get(module_id, _NO_SPACES)[1]
        known, actions = self._discrete_actions.get(module_id, _NO_SPACES)
        if known is not space:
            # A state that was loaded may have brought another space.
            actions = discrete_actions(space)
            self._discrete_actions[module_id] = space, actions
        if actions is not None:
            # Closed forms look at the actions that they count by.
            in_range = bool(member.optimizers or member.shared)
            actions.check(module_id, batch, self.training_spaces.get(module_id), in_range=in_range)

    def _postprocess(self, update: ModuleUpdate) -> None:
        """Unscale, then let plugins change the gradients."""
        if self.precision.scaler is not None:
            for one in update.acting:
                if any(param.grad is not None for param in one.params):
                    self.precision.scaler.unscale_(one.optimizer)
        if self._terms.wanted:
            factor = self.precision.unscaling / update.weight
            self._terms.finish(update, factor, self.process_group.average_terms)
        if self._gradient_hooks.used:
            self._gradient_hooks(update, self._terms.of(update.member.module_id))
            update.flat_gradients = None

    def _additional_update(self, member: Member, batch: Batch, metrics: dict[str, Any]) -> None:
        for plugin, reported in self.calls.additional_update(
            member.module_id, member.module, batch, self.timestep, metrics, self
        ):
            if plugin == member.algorithm:
                metrics.update(reported)
            else:
                metrics |= {f"{plugin}/{name}": value for name, value in reported.items()}


def _mismatch(space: AnySpace, column: Any) -> str:
    """How the rows of a column differ in shape from a space; empty if they do not."""
    if isinstance(space, spaces.Box) and tuple(column.shape[1:]) == space.shape:
        return ""
    try:
        return shape_mismatch(without_action_mask(space), tree_map(_FIRST, column))
    except (KeyError, IndexError, TypeError, ValueError):
        return ""


def _check_count(name: str, value: Any, least: int) -> None:
    if not is_whole_number(value):
        raise RequestError(f"{name} must be a whole number, got {value!r}.")
    if value < least:
        raise RequestError(f"{name} must be at least {least}, got {value}.")


Ready = dict[ModuleUpdate, list[RegisteredOptimizer]]

_METRIC_HOOKS = ("additional_update", "update_finished")
"""Hooks that see the metrics of an update."""

_OBSERVATIONS = ("observations", "next_observations", "final_observations")
_FIRST = itemgetter(0)
_NO_SPACES: tuple[Any, Any] = (None, None)
_NOTHING = nullcontext()
_WEIGHT, _STEPPED, _STOPPED = map(attrgetter, ("weight", "stepped", "stopped"))
