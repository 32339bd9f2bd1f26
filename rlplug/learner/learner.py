"""The learner: turns batches into updates of all its modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor, nn
from torch.autograd import set_detect_anomaly

from rlplug.batch import Batch
from rlplug.batch.episodes import Episode, batches_of
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.hooks.calls import HookCalls
from rlplug.learner import by_hand, modules, state
from rlplug.learner.device import Precision
from rlplug.learner.distributed import ProcessGroup
from rlplug.learner.gradients import balance_terms, call_gradient_hooks, wants_terms
from rlplug.learner.losses import LossHooks, check_metrics, nonfinite_terms
from rlplug.learner.member import Member
from rlplug.learner.modules import Spaces, ToTrain, check_batch, member_of, set_timestep
from rlplug.learner.optimizers import Optimizers
from rlplug.learner.state import plugin_digests, refuse_unsaved
from rlplug.learner.step import (
    Acting,
    Evaluation,
    TrainedModule,
    Window,
    clip_gradients,
    merged,
    normalize_gradients,
    refuse_nonfinite,
    step_optimizers,
    turns,
    windows,
)
from rlplug.nn.arrays import FrozenWeights
from rlplug.optim.steps import NoGrad
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE, Module
from rlplug.spaces import AnySpace

Results: TypeAlias = dict[str, dict[str, Any]]
"""Module id → metric → value."""

Batches = Mapping[str, Batch]
Log = dict[TrainedModule, list[Evaluation]]
Evaluations = dict[TrainedModule, Evaluation]


class Learner:
    """Turns one batch per module into one update of every module.

    It can be used by itself: `learner.build()`, then `learner.update(batches, timestep=n)`.
    """

    def __init__(
        self,
        calls: HookCalls,
        spaces: Mapping[str, Spaces],
        *,
        seed: int,
        learning: LearnerSection | None = None,
        compute: ComputeSection | None = None,
        modules: Mapping[str, Any] | None = None,
        process_group: ProcessGroup | None = None,
        training_spaces: Mapping[str, AnySpace] | None = None,
    ) -> None:
        self.calls = calls
        self.seed = seed
        self.learning, self.compute = learning or LearnerSection(), compute or ComputeSection()
        self.process_group = process_group or ProcessGroup()
        self.world_size = self.process_group.size
        """How many learners share each update."""
        self.losses = LossHooks(calls, self)
        self.by_term = wants_terms(calls, self.learning)
        self.dtype = torch.float64 if self.compute.dtype == "float64" else torch.float32
        """The format of weights, and of the columns that modules with optimizers get."""
        self.precision = Precision(ComputeSection(), torch.device("cpu"))
        self.timestep = 0
        """Environment steps at the current update."""
        self.updates = 0
        """How many updates there were."""
        self.optimizers = Optimizers()
        """The optimizers of all modules."""
        self.shared: TrainedModule | None = None
        self.shared_member: Member | None = None
        self.read: frozenset[tuple[str, str, str]] = frozenset()
        self.spaces: dict[str, Any] = dict(spaces)
        self.training_spaces = dict(training_spaces or {})
        """Of `batch["observations"]`, for modules that learn from more than they act on."""
        self.given = dict(modules or {})
        self.members: dict[str, Member] = {}
        self.modules: dict[str, Module] = {}
        self.extra: dict[str, dict[str, nn.Module]] = {}
        self.trained: dict[str, TrainedModule] = {}
        """The modules that have optimizers, with what they keep from update to update."""
        self.generators: dict[str, torch.Generator] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        """Per-row values of the last update (`priority`), with their `indices`, by module."""
        self.registered: dict[str, dict[str, Any]] = {}
        self.prepare_seconds = 0.0
        """Seconds that `prepare_batch` hooks took."""
        self.modules_to_train: ToTrain = None
        """None for all, the ids of some, or a function of module id and batch.

        A function is no part of the state: loading one leaves `modules_to_train` as it is then.
        """
        # Of add-ons nobody knows what they put in place of a weight in the midst of an update.
        self._frozen: Any = nullcontext() if calls.addons else FrozenWeights()
        self._prepares_batches = calls.implements("prepare_batch")
        self._uses_gradient_hooks = calls.implements("postprocess_gradients")
        self._shows_metrics = any(map(calls.implements, ("additional_update", "update_finished")))

    # -- an update, step by step -------------------------------------------------------------------

    def update(
        self,
        batches: Batches,
        *,
        timestep: int,
        num_iters: int = 1,
        minibatch_size: int | None = None,
    ) -> Results:
        """One update: `num_iters` passes in minibatches (None or 0: the whole batch).

        What fails leaves `timestep` and `updates`, and no results.
        """
        trained, shared, learning = self.trained, self.shared, self.learning
        log: Log = {}
        before, updates = self.timestep, self.updates
        try:
            if timestep != before:
                set_timestep(self, timestep)
            if updates and not trained and shared is None:
                # Closed forms may learn row by row: without contexts.
                prepared = self.prepare_batches(batches)
                self.updates += 1
                return self._results(prepared, log)
            kept = None if updates else plugin_digests(self.calls)
            watched = set_detect_anomaly(True) if self.compute.detect_anomaly else _UNWATCHED
            with self._frozen, watched:
                prepared = self.prepare_batches(batches)
                live: dict[TrainedModule, Batch] = {}
                for name, batch in prepared.items():
                    if name in trained:
                        live[trained[name]] = batch
                        log[trained[name]] = []
                if shared is not None and live:
                    log[shared] = []
                for _ in range(num_iters):
                    begun = list(map(len, log.values()))
                    most = self.process_group.most if self.world_size > 1 else int
                    for window in windows(live, minibatch_size or 0, learning, most):
                        self._step_all(window, live, log)
                    for module, start in zip(log, begun, strict=True):
                        registered = self.registered.get(module.member.module_id, {})
                        module.epoch_ended(log[module][start:], registered)
                if self.precision.scaler is not None:
                    self.precision.refuse_lost_scale(self.updates)
                self.updates += 1
                results = self._results(prepared, log)
            if kept is not None:
                refuse_unsaved(self.calls, kept)
        except BaseException:
            self.updates = updates
            set_timestep(self, before)
            for optimizer in self.optimizers:
                optimizer.stepped_in_epoch = False
            raise
        return results

    def _step_all(self, window: Window, live: dict[TrainedModule, Batch], log: Log) -> None:
        """One step of all modules: every optimizer acts once, at once or one after another."""
        told: Evaluations = {}
        moved: dict[TrainedModule, None] = {}
        for acting in turns(window, self.shared, self.learning):
            for module, result in told.items():
                if result.stop:
                    acting.pop(module, None)
            evaluations: Evaluations = self._evaluate(window, acting, told)
            told.update(evaluations)
            self._step(evaluations, window, acting)
            for module, result in evaluations.items():
                if result.stop:
                    live.pop(module, None)
                elif result.weight:
                    moved[module] = None
        for module, result in told.items():
            log[module].append(result)
        for module in moved:
            module.cycle.position += 1
            # After what modules share has moved.
            for target in module.targets:
                target.update(self.timestep)
        if moved and self.precision.scaler is not None:
            self.precision.update_scale()

    def _evaluate(self, window: Window, acting: Acting, told: Evaluations) -> Evaluations:
        """Losses, gradients, hooks and clipping; `told` is what earlier turns have given."""
        shared, group = self.shared, self.process_group
        if shared is not None:
            for param in shared.member.named.values():
                param.grad = None
        evaluations: Evaluations = {}
        for module, names in acting.items():
            if module is shared:
                continue
            # In the turn of what modules share, the losses are those of all that act.
            result = module.engine.gradients(window[module], names or module.cycle.acting())
            if self.learning.accumulate > 1:
                normalize_gradients(module, result)
            if not names:
                result = result._replace(acting={})
            evaluations[module] = merged(told[module], result) if module in told else result
        if group.size > 1:
            present = float(any(result.weight for result in evaluations.values()))
            for module, result in evaluations.items():
                evaluations[module] = group.average(module.member, result)
            if shared is not None:
                names = shared.cycle.acting()
                group.average(shared.member, Evaluation(present, acting=dict.fromkeys(names, 1.0)))
        if shared in acting and any(result.weight for result in evaluations.values()):
            names = acting[shared]
            evaluations[shared] = Evaluation(1.0, metrics=[{}], acting=dict.fromkeys(names, 1.0))
        for module, result in evaluations.items():
            if result.weight:
                evaluations[module] = self._postprocess(module, result, window)
        return evaluations

    def _postprocess(self, module: TrainedModule, result: Evaluation, window: Window) -> Evaluation:
        """Unscale, let plugins change the gradients, clip."""
        member, precision, learning = module.member, self.precision, self.learning
        optimizers = module.cycle.optimizers
        if len(result.acting) < len(optimizers):
            optimizers = module.acting(result.acting)
        if precision.scaler is not None:
            # Every learner sees the same, and where fp16 could not hold them.
            precision.unscale(optimizers)
        if self.by_term:
            factor = precision.unscaling / result.weight
            terms = {
                term: {name: gradient * factor for name, gradient in gradients.items()}
                for term, gradients in result.terms.items()
            }
            terms = self.process_group.average_terms(terms, member.named)
            result = result._replace(terms=terms)
            if terms and learning.balance_grad_norms:
                balance_terms(result, member, learning.max_grad_norm)
        if self._uses_gradient_hooks:
            params = [param for optimizer in optimizers for param in optimizer.params]
            call_gradient_hooks(self.calls, self, member, params, result)
        before = len(result.nonfinite)
        result = clip_gradients(optimizers, result, learning, precision)
        stops = learning.nonfinite == "stop" and precision.scaler is None
        if stops and len(result.nonfinite) > before:
            losses = [
                self.losses(member, batch, tuple(result.acting)) for batch in window.get(module, ())
            ]
            told = [nonfinite_terms(loss, member) for loss in losses if loss is not None]
            refuse_nonfinite(member, [line for lines in told for line in lines])
        return result

    def _step(self, evaluations: Evaluations, window: Window, acting: Acting) -> None:
        """Step the optimizers of the modules that had a loss."""
        for module, result in evaluations.items():
            if result.weight:
                again = partial(self._again, module, window, acting)
                step_optimizers(module, result, self.precision.scaler, again)

    def _again(self, module: TrainedModule, window: Window, acting: Acting) -> Evaluation:
        """Evaluate once more, for an optimizer that does so within its step."""
        return self._evaluate(window, {module: acting[module]}, {})[module]

    def _results(self, prepared: Batches, log: Log) -> Results:
        """Averages over minibatches, `additional_update`, and sums under ALL_MODULES."""
        results: Results = {}
        both: dict[str, Any] = {"steps_trained": 0, "updates": self.updates}
        loss: Any = None
        for module_id, batch in prepared.items():
            both["steps_trained"] += batch.rows
            module = self.trained.get(module_id)
            metrics: dict[str, Any] = {}
            if module is not None:
                metrics, self.rows[module_id] = module.results(log[module])
                if self.precision.scaler is not None and "nonfinite" in metrics:
                    metrics["overflow"] = metrics.pop("nonfinite")
                if self.world_size > 1:
                    metrics = self.process_group.average_metrics(metrics)
                if self._shows_metrics:
                    metrics = as_tensors(metrics)
                if "loss" in metrics:
                    loss = metrics["loss"] if loss is None else loss + metrics["loss"]
            self._additional_update(module_id, batch, metrics)
            if module_id in self.registered:
                metrics.update(self.registered.pop(module_id))
            if module is not None:
                module.metrics = metrics
            results[module_id] = metrics
        if loss is not None:
            both["loss"] = loss
        if self.shared is not None and self.shared in log:
            both.update(self.shared.results(log[self.shared])[0])
        both.update(self.registered.pop(ALL_MODULES, {}))
        results[ALL_MODULES] = both
        return results

    def _additional_update(self, module_id: str, batch: Batch, metrics: dict[str, Any]) -> None:
        member = self.members[module_id]
        offered = module_id, member.module, batch, self.timestep, metrics, self
        for plugin, reported in self.calls.results("additional_update", offered):
            if self.updates <= 1:
                check_metrics(reported, plugin)
            if plugin == member.algorithm:
                metrics.update(reported)
            else:
                metrics |= {f"{plugin}/{name}": value for name, value in reported.items()}

    # -- before an update --------------------------------------------------------------------------

    def prepare_batches(self, batches: Batches) -> dict[str, Batch]:
        """The batches of the modules to train: checked, on the device, with all columns."""
        device = self.precision.device
        chosen: dict[str, Batch] = {}
        placed: dict[str, Batch] = {}
        for module_id, batch in batches.items():
            member = self.members.get(module_id)
            if member is None or not member.checked:
                member = check_batch(self, module_id, batch)
            if member.optimizers:
                batch = batch.to(device, self.dtype)
            elif device.type != "cpu":
                # A closed form reads NumPy as it came, in its own precision.
                batch = batch.to(device)
            placed[module_id] = batch
            everything = self.modules_to_train is None and member.trainable
            if everything or self.can_module_be_updated(module_id, batch):
                chosen[module_id] = batch
        if not self._prepares_batches:
            return chosen
        began = perf_counter()
        with NoGrad():
            for module_id, batch in chosen.items():
                member, module = self.members[module_id], self.trained.get(module_id)
                if module is not None:
                    chosen[module_id] = module.engine.prepare(batch, placed)
                elif member.is_torch:
                    chosen[module_id] = self.losses.prepare(member, batch, placed)
                chosen[module_id].check()
        self.prepare_seconds += perf_counter() - began
        return chosen

    # -- other ways to update ----------------------------------------------------------------------

    def update_from_batch(
        self,
        batch: Batch | Batches,
        *,
        timestep: int | None = None,
        num_iters: int = 1,
        minibatch_size: int | None = None,
    ) -> Results:
        """`update` for one batch or several; without `timestep` its rows are counted as steps."""
        batches = {DEFAULT_MODULE: batch} if isinstance(batch, Batch) else batch
        for module_id, rows in batches.items():
            check_batch(self, module_id, rows)
        if timestep is None:
            timestep = self.timestep + sum(rows.rows for rows in batches.values())
        return self.update(
            batches, timestep=timestep, num_iters=num_iters, minibatch_size=minibatch_size
        )

    def update_from_episodes(self, episodes: Sequence[Episode], **options: Any) -> Results:
        """`update_from_batch` for episodes, complete or cut; each goes to its module."""
        return self.update_from_batch(batches_of(episodes), **options)

    def additional_update(
        self, batches: Batches, *, timestep: int, module_ids: Collection[str] | None = None
    ) -> Results:
        """Only what no gradient moves, for all modules of the batch or the named ones."""
        results: Results = {}
        before = self.timestep
        try:
            set_timestep(self, timestep)
            for module_id in batches if module_ids is None else module_ids:
                member_of(self, module_id)
                results[module_id] = {}
                self._additional_update(module_id, batches[module_id], results[module_id])
        except BaseException:
            set_timestep(self, before)
            raise
        return results

    # -- modules -----------------------------------------------------------------------------------

    build = modules.build
    add_module = modules.add_module
    remove_module = modules.remove_module
    set_options = modules.set_options
    register_optimizer = modules.register_optimizer
    can_module_be_updated = modules.can_module_be_updated
    generator = modules.generator

    @property
    def device(self) -> torch.device:
        """Where modules and batches are."""
        return self.precision.device

    @property
    def engines(self) -> dict[str, tuple[str, str]]:
        """Module id → what computes its gradients (`arrays`, `torch`, `compiled`), and why."""
        engines = {module_id: module.engine for module_id, module in self.trained.items()}
        return {module_id: (engine.name, engine.reason) for module_id, engine in engines.items()}

    def get_optimizer(
        self, module_id: str = DEFAULT_MODULE, optimizer_name: str = "default"
    ) -> torch.optim.Optimizer:
        """One optimizer by its module and its name."""
        return self.optimizers.by_key[module_id, optimizer_name].optimizer

    def get_optimizers_for_module(
        self, module_id: str = DEFAULT_MODULE
    ) -> list[tuple[str, torch.optim.Optimizer]]:
        """All optimizers of a module with their names."""
        return [(held.name, held.optimizer) for held in self.optimizers.of(module_id)]

    def all_reduce(self, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        """The tensors combined over all learners (`sum`, `mean`, `max`)."""
        return self.process_group.all_reduce(tensors, op)

    def register_metric(self, module_id: str, name: str, value: Any) -> None:
        """Report a number or a 0-d tensor with the module's next results, or with ALL_MODULES."""
        self.register_metrics(module_id, {name: value})

    def register_metrics(self, module_id: str, metrics: Mapping[str, Any]) -> None:
        """Report several."""
        if module_id != ALL_MODULES:
            member_of(self, module_id)
        self.registered.setdefault(module_id, {}).update(metrics)

    # -- step by step, and the state; each is a function of the learner ----------------------------

    forward_train = by_hand.forward_train
    compute_loss = by_hand.compute_loss
    compute_loss_for_module = by_hand.compute_loss_for_module
    compute_gradients = by_hand.compute_gradients
    postprocess_gradients = by_hand.postprocess_gradients
    postprocess_gradients_for_module = by_hand.postprocess_gradients_for_module
    apply_gradients = by_hand.apply_gradients

    get_state = state.get_state
    set_state = state.set_state
    save_state = state.save_state
    load_state = state.load_state
    set_module_state = state.set_module_state
    get_generators = state.get_generators
    set_generators = state.set_generators
    weight_digests = state.weight_digests


def as_tensors(metrics: dict[str, Any]) -> dict[str, Any]:
    """NumPy scalars as tensors, which is what hooks expect."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, numpy.generic)}
    if numbers:
        tensors = torch.from_numpy(numpy.array(list(numbers.values()))).unbind()
        metrics.update(zip(numbers, tensors, strict=True))
    return metrics


_UNWATCHED: Any = nullcontext()
