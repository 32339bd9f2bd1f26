"""The contract: the hooks by which plugins build, train and save modules.

Each docstring says when and how often a hook is called, what its arguments are, what `None`
means, how results of several plugins are combined, and shows an example. docs/hooks.md is
generated from them.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

from rlplug.hooks import hookspec

if TYPE_CHECKING:
    import gymnasium
    from torch import Tensor, nn

    from rlplug.batch import Batch
    from rlplug.plugin import LearnerView, Loss, Module

__all__ = ["LearnerHooks"]


class LearnerHooks(Protocol):
    """Building and training modules; never called per environment step."""

    @hookspec(firstresult=True)
    def build(
        self,
        module_id: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        config: Any,
        seed: int,
        training_space: gymnasium.Space[Any],
    ) -> Module:
        """Build the module that acts and is trained.

        Called: once per module id, at the start of a run and on `add_module`.
        module_id: `"default"` if the run has one module.
        observation_space, action_space: of one environment, after wrappers.
        config: the called plugin's own options for this module.
        seed: for your own generators; the global ones are seeded with it for the call and restored
            afterwards.
        training_space: of `batch["observations"]`: with several agents, a feed may ask for more
            than one agent sees (`global_state`, `team`); else it is `observation_space`.
        None: not allowed.
        Several plugins: the algorithm builds the module. An add-on may only wrap it, with
            `@hookimpl(wrapper=True)`, and returns the result of `yield` or a module around it.

        Example:
            @hookimpl
            def build(self, observation_space, action_space, config):
                if not isinstance(action_space, Discrete):
                    raise UnsupportedSpaceError(f"needs discrete actions, got {action_space}.")
                return QModule(observation_space, int(action_space.n), config.net_arch)
        """

    @hookspec
    def build_extra(
        self,
        module_id: str,
        module: Module,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        config: Any,
        seed: int,
    ) -> nn.Module | None:
        """Build what the plugin keeps beside a module: a reward model, averaged weights.

        Called: once per module and plugin, right after `build`.
        module: what `build` returned. The other arguments are those of `build`, and
            `observation_space` is the `training_space`.
        None: nothing to keep.
        Several plugins: each keeps its own, at `learner.extra[module_id][plugin]`. It is moved,
            saved and removed with the module, is not sent to samplers, and is passed to its plugin
            as `extra`. Its parameters are named `plugin.name`.

        Example:
            @hookimpl
            def build_extra(self, observation_space, config):
                return Curiosity(observation_space, width=config.width)
        """

    @hookspec
    def configure_optimizers_for_module(
        self,
        module_id: str,
        module: Module,
        extra: nn.Module | None,
        config: Any,
        learner: LearnerView,
    ) -> Any:
        """Create the optimizers of your parameters.

        Called: once per module and plugin, after `build_extra`; once more with
            `module_id=ALL_MODULES` for parameters that modules share.
        module, extra: what `build` and `build_extra` returned; `extra` may be None. The
            algorithm optimizes `module` (and its own `extra`), an add-on its own `extra` only.
        learner: for `learner.register_optimizer(...)`, as an alternative to returning optimizers.
        Returns one of six forms: an optimizer (named `default`; an add-on's is named after the
            add-on); a list or tuple of them; a mapping from names to optimizers; two lists,
            optimizers and schedulers; a dict with `optimizer` and optionally `lr_scheduler`; a
            tuple of such dicts with `frequency`, of which one steps at a time.
        Several optimizers: all step on each minibatch, by gradients that were taken before any of
            them stepped. With the option `learner.optimizers = "in_turn"` each has a forward pass,
            loss and gradients of its own, after the one before it has stepped, as in Lightning;
            what modules share moves last, by the losses of all. Of metrics with the same name, such
            as `loss`, the results have that of the first optimizer.
        frequency: for so many optimizer steps in its turn it acts alone; two optimizers of a cycle
            may hold the same parameters, and each keeps its own state. Minibatches that are
            accumulated (`learner.accumulate`) are one step; those without any loss are not counted,
            those skipped for gradients that are not finite are.
        lr_scheduler: a scheduler, a list of them, or a dict: `scheduler`;
            `interval` and `frequency`, of which the scheduler moves once in so many; `monitor`,
            the metric that ReduceLROnPlateau follows (ignored for schedulers that follow none);
            `strict`, whether the run ends if it is missing; `name`, for the reported learning rate.
        interval: `"step"`, of the optimizer, or `"epoch"`, the default: one pass over the batch of
            an update. Of a rollout that is each of its `n_epochs`. A stream has no epochs of its
            own: each update is one, and so it is with a replay buffer; `"step"` is clearer there.
        monitor: a metric of the module (`loss`; of accumulated minibatches the mean), at each
            interval, or one of the run (`eval/return_mean`, `rollout/return_mean`): then the
            scheduler moves when it is due and the metric has a new value, so that `patience` counts
            evaluations or reports.
        None: no optimizer. A module without optimizers has no gradient steps, and
            `forward_train` is not called. An algorithm without this hook gets Adam with its option
            `learning_rate`.
        Several plugins: all of them, each over its own parameters.

        Example:
            @hookimpl
            def configure_optimizers_for_module(self, module, config):
                return {
                    "actor": Adam(module.actor.parameters(), lr=config.learning_rate),
                    "critic": Adam(module.critic.parameters(), lr=config.critic_learning_rate),
                }
        """

    @hookspec
    def prepare_batch(
        self,
        module_id: str,
        module: Module,
        extra: nn.Module | None,
        config: Any,
        batch: Batch,
        batches: Mapping[str, Batch],
        timestep: int,
        learner: LearnerView,
    ) -> Mapping[str, Tensor] | None:
        """Compute what all minibatches need, once: advantages, targets, bonuses.

        Called: once per module and update, on the learner's device, before it is split into
            minibatches; without gradients.
        batch: all rows of this update; do not modify it, return new columns instead.
        batches: those of all modules, read-only, for centralized critics.
        timestep: environment steps so far.
        None: nothing to add.
        Several plugins: add-ons in their order, the algorithm last; each sees the columns that
            those before it returned. Returned columns, with one value per row, are added or replace
            existing ones.

        Example:
            @hookimpl
            def prepare_batch(self, extra, batch):
                bonus = extra.surprise(batch["next_observations"])
                return {"rewards": batch["rewards"] + bonus}
        """

    @hookspec
    def compute_loss_for_module(
        self,
        module_id: str,
        module: Module,
        extra: nn.Module | None,
        config: Any,
        batch: Batch,
        fwd_out: Mapping[str, Tensor],
        optimizers: tuple[str, ...],
        learner: LearnerView,
    ) -> Tensor | Loss | Mapping[str, Any] | None:
        """Compute the loss of a minibatch.

        Called: once per module, minibatch and plugin; with the option
            `learner.optimizers = "in_turn"` once for each optimizer.
        batch: the minibatch: `observations`, `actions`, `rewards`, … with n rows each.
        fwd_out: what `module.forward_train(batch)` returned.
        optimizers: the names of the optimizers that step on this minibatch.
        Returns a scalar tensor; a mapping with the key `"loss"`, whose other entries are metrics;
            or a `Loss` with metrics, named terms, per-row values, a stop signal, or a loss per
            optimizer: optimizers without a loss do not step.
        None: no loss term; if all plugins return None, the minibatch is skipped and counted.
        Several plugins: all terms are summed, and reported one by one.

        Example:
            @hookimpl
            def compute_loss_for_module(self, batch, fwd_out):
                chosen = fwd_out["q"].gather(1, batch["actions"][:, None])[:, 0]
                error = chosen - batch["targets"]
                return Loss((error**2).mean(), rows={"priority": error.detach().abs()})
        """

    @hookspec
    def postprocess_gradients(
        self,
        module_id: str,
        module: Module,
        extra: nn.Module | None,
        config: Any,
        gradients: MutableMapping[str, Tensor],
        term_gradients: Mapping[str, Mapping[str, Tensor]],
        metrics: MutableMapping[str, Any],
        learner: LearnerView,
    ) -> None:
        """Modify gradients before they are clipped and applied.

        Called: once per module and optimizer step, after the backward pass and averaging over
            learners, before clipping.
        gradients: parameter name → gradient. Modify them in place or assign new tensors;
            removing one is an error. The algorithm gets its own parameters, add-ons get all.
        term_gradients: loss term → parameter name → gradient. Costs one backward pass per term;
            computed only if some plugin takes this argument.
        metrics: of this minibatch so far; add your own.
        Returns nothing.
        Several plugins: the algorithm first, then add-ons in order; each sees earlier changes.

        Example:
            @hookimpl
            def postprocess_gradients(self, gradients, config):
                for gradient in gradients.values():
                    gradient.add_(torch.randn_like(gradient), alpha=config.scale)
        """

    @hookspec
    def additional_update(
        self,
        module_id: str,
        module: Module,
        extra: nn.Module | None,
        config: Any,
        batch: Batch,
        timestep: int,
        metrics: Mapping[str, Any],
        learner: LearnerView,
    ) -> Mapping[str, Any] | None:
        """Update what is not trained by gradients: closed forms, coefficients, averages.

        Called: once per module and update, after the optimizer steps of all its minibatches.
        batch: all rows of this update, as `prepare_batch` left them.
        timestep: environment steps so far.
        metrics: of this update, averaged over its minibatches and over learners.
        learner: `learner.all_reduce(tensors)` sums statistics over learners; all learners must
            call it equally often.
        Returns a mapping of metrics: numbers or 0-d tensors.
        None: no metrics.
        Several plugins: all, the algorithm first, then add-ons in their order.

        Example:
            @hookimpl
            def additional_update(self, module, batch, learner):
                counts, sums = learner.all_reduce(module.statistics(batch))
                module.absorb(counts, sums)
                return {"rows": counts.sum()}
        """

    @hookspec
    def inference_module(
        self,
        module_id: str,
        module: Module,
        extra: nn.Module | None,
        config: Any,
        learner: LearnerView,
    ) -> Module | None:
        """Choose the module for evaluation, export and serving.

        Called: before each evaluation, export and save of a policy.
        None: the module itself.
        Several plugins: the last one that returns a module; add-ons come after the algorithm.

        Example:
            @hookimpl
            def inference_module(self, extra):
                return extra.averaged_module
        """

    @hookspec
    def save_state(self) -> Mapping[str, Any]:
        """Return the plugin's own state, which a resumed run needs.

        Called: at every checkpoint. The core saves modules, extras and optimizers. A plugin whose
            attributes change during an update must implement this hook.
        Returns tensors, numbers, texts, and lists or mappings of them.
        Several plugins: each its own.

        Example:
            @hookimpl
            def save_state(self):
                return {"kl_coef": self.kl_coef}
        """

    @hookspec
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `save_state` returned.

        Called: once on resume, after `build`, before the first update.
        state: what `save_state` returned.
        Returns nothing.
        Several plugins: each gets its own.

        Example:
            @hookimpl
            def load_state(self, state):
                self.kl_coef = state["kl_coef"]
        """
