"""What people call by hand: the steps of an update one by one, metrics, and the state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.config.secrets import masked, without_masked
from rlplug.config.toml import plain
from rlplug.errors import PluginError, RequestError, RlplugError
from rlplug.learner import fit, state
from rlplug.learner.arguments import (
    check_batches,
    check_bool,
    check_by_module,
    check_gradients,
    check_ids,
    check_losses,
    check_metrics,
    check_optimizer,
    check_settings,
    state_folder,
    weight_of,
)
from rlplug.learner.gradients import like_parameter
from rlplug.learner.member import Member
from rlplug.learner.module_update import ModuleUpdate
from rlplug.learner.modules import LearnerModules
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE
from rlplug.registry import packages
from rlplug.trees import read_tree, replace_tree

__all__ = ["ByHand"]


class ByHand(LearnerModules):
    """Forward passes, losses, gradients, steps and state of a learner's modules."""

    def forward_train(self, batches: Mapping[str, Batch]) -> dict[str, Mapping[str, Tensor]]:
        """What each module computes for its loss."""
        check_batches(batches)
        for module_id in batches:
            self.member(module_id).check_forward()
        return {
            module_id: self.members[module_id].module.forward_train(batch)
            for module_id, batch in batches.items()
        }

    def compute_loss(
        self, fwd_out: Mapping[str, Mapping[str, Tensor]], batches: Mapping[str, Batch]
    ) -> dict[str, Tensor]:
        """Each module's loss, and their sum under ALL_MODULES, which changes none of them."""
        check_batches(batches)
        check_by_module(fwd_out, "outputs of modules", "forward_train")
        losses: dict[str, Tensor] = {}
        for module_id, batch in batches.items():
            if module_id not in fwd_out:
                raise RequestError(
                    f"there is no output of module {self.member(module_id).module_id!r}.",
                    "give forward_train the same batches",
                )
            loss = self.compute_loss_for_module(module_id, fwd_out[module_id], batch)
            if loss is not None:
                losses[module_id] = loss
        if losses:
            values = list(losses.values())
            losses[ALL_MODULES] = sum(values[1:], values[0])
        return losses

    def compute_loss_for_module(
        self, module_id: str, fwd_out: Mapping[str, Tensor], batch: Batch
    ) -> Tensor | None:
        """The sum of all plugins' terms; None if nobody has one."""
        member = self.member(module_id)
        check_by_module(fwd_out, f"outputs of module {module_id!r}", "forward_train")
        check_batches({module_id: batch})
        update = self.module_updates.get(module_id)
        acting = [] if update is None else update.scheduled()
        names = tuple(one.name for one in acting)
        loss = self._losses(member, batch, names, fwd_out=fwd_out)
        total: Tensor | None = None if loss is None else loss.total
        return total

    def compute_gradients(self, losses: Mapping[str, Tensor]) -> dict[nn.Parameter, Tensor]:
        """The gradients of the loss under ALL_MODULES, or of the sum of all if there is none.

        By parameter; of parameters without a gradient, nothing.
        """
        check_losses(losses)
        for module_id in losses:
            if module_id != ALL_MODULES:
                self.member(module_id)
        params = self._parameters()
        total = losses.get(ALL_MODULES)
        if total is None:
            values = list(losses.values())
            total = sum(values[1:], values[0])
        try:
            gradients = torch.autograd.grad(total, params, allow_unused=True)
        except RuntimeError as error:
            if "a second time" not in str(error):
                raise
            raise RequestError(
                "gradients of these losses were computed before.",
                "give those of another forward_train and compute_loss",
            ) from error
        return {
            param: gradient
            for param, gradient in zip(params, gradients, strict=True)
            if gradient is not None
        }

    def postprocess_gradients(
        self, gradients: Mapping[nn.Parameter, Tensor]
    ) -> dict[nn.Parameter, Tensor]:
        """The hooks of all modules, and of what they share; no gradient may vanish.

        Gradients are clipped by `apply_gradients`: what makes a step be skipped are the gradients
        that all hooks have changed, and their norm is measured once for both.
        """
        check_gradients(gradients)
        result = dict(gradients)
        for module_id in self._all_updates():
            result.update(self.postprocess_gradients_for_module(module_id, result))
        return result

    def postprocess_gradients_for_module(
        self, module_id: str, gradients: Mapping[nn.Parameter, Tensor]
    ) -> dict[nn.Parameter, Tensor]:
        """The hooks of one module on copies of its own part."""
        check_gradients(gradients)
        update = self._all_updates().get(module_id)
        if update is None:
            raise RequestError(
                f"module {self.member(module_id).module_id!r} has no optimizer, and so no "
                "gradients.",
                "leave it out",
            )
        params = self._set_gradients(update, gradients)
        if self._gradient_hooks.used:
            # They may work in place, and these are the caller's.
            for param in params:
                param.grad = None if param.grad is None else param.grad.clone()
            # Gradients by term are taken in `update` alone: those that are there are of the last.
            self._gradient_hooks(update, {})
        return {param: param.grad for param in params if param.grad is not None}

    def apply_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Clip copies of them, then step every optimizer that has gradients here and does not rest.

        All act at once, whatever `learner.optimizers` is; those with a `frequency` take turns.
        """
        check_gradients(gradients)
        known = {id(param) for param in self._parameters()}
        if any(id(param) not in known for param in gradients):
            raise PluginError(
                "gradients of parameters that no optimizer of the learner holds.",
                "give those of compute_gradients",
            )
        updates = self._all_updates()
        for module_id, update in updates.items():
            if update.needs_closure:
                raise RequestError(
                    f"the optimizer of module {module_id!r} is LBFGS, which computes its losses "
                    "again and again.",
                    "try: learner.update(…)",
                )
        copies = {
            param: gradient.clone() for param, gradient in gradients.items() if gradient is not None
        }
        for update in updates.values():
            update.begin([])
            self._set_gradients(update, copies)
            update.clip()
            update.step(lambda: None)
            update.advance()
        for update in self.module_updates.values():
            if any(param in copies for param in update.member.named.values()):
                update.update_targets(self.timestep)

    def get_optimizers_for_module(
        self, module_id: str = DEFAULT_MODULE
    ) -> list[tuple[str, torch.optim.Optimizer]]:
        """All optimizers of a module with their names."""
        return [(one.name, one.optimizer) for one in self.optimizers.of(module_id)]

    def get_parameters(self, module_id: str) -> list[nn.Parameter]:
        """The parameters of a module; none of one that is no torch module."""
        member = self.member(module_id)
        return list(member.module.parameters()) if member.is_torch else []

    def get_param_ref(self, param: nn.Parameter) -> nn.Parameter:
        """The key of a parameter in mappings of gradients: itself."""
        return param

    def filter_param_dict_for_optimizer(
        self, gradients: Mapping[nn.Parameter, Tensor], optimizer: torch.optim.Optimizer
    ) -> dict[nn.Parameter, Tensor]:
        """The part of a mapping that belongs to one optimizer."""
        check_gradients(gradients)
        check_optimizer(optimizer, "what gradients are filtered for")
        return {
            param: gradients[param]
            for group in optimizer.param_groups
            for param in group["params"]
            if gradients.get(param) is not None
        }

    def register_metric(self, module_id: str, name: str, value: Any) -> None:
        """Report a number or a 0-d tensor with the module's next results, or with ALL_MODULES."""
        self.register_metrics(module_id, {name: value})

    def register_metrics(self, module_id: str, metrics: Mapping[str, Any]) -> None:
        """Report several."""
        check_metrics(metrics)
        if module_id != ALL_MODULES:
            self.member(module_id)
        self.registered_metrics.setdefault(module_id, {}).update(metrics)

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything that the next update depends on, as a tree of tensors and plain values."""
        scaler = self.precision.scaler
        wanted = self.modules_to_train
        # A snapshot: state dicts hold the very tensors that training goes on to change.
        return copy.deepcopy(
            {
                "format": fit.FORMAT,
                "plugins": packages(self.calls.participants),
                "counters": {"timestep": self.timestep, "updates": self.updates},
                "modules_to_train": (
                    None if wanted is None or callable(wanted) else sorted(wanted)
                ),
                "chosen_by_function": callable(wanted),
                "frozen": [one.module_id for one in self.members.values() if not one.trainable],
                "spaces": {
                    module_id: fit.spaces_to_tree(self._spaces_of(module_id))
                    for module_id in self.members
                },
                "modules": {
                    module_id: member.module.state_dict()
                    for module_id, member in self.members.items()
                    if member.has_state
                },
                "options": {
                    module_id: {
                        plugin: masked(plain(config))
                        for plugin, config in self.calls.overrides(module_id).items()
                    }
                    for module_id in self.members
                },
                "plugin_options": {
                    one.name: masked(plain(one.config)) for one in self.calls.participants
                },
                "extra": {
                    module_id: {plugin: extra.state_dict() for plugin, extra in extras.items()}
                    for module_id, extras in self.extra.items()
                    if extras
                },
                "optimizers": self._optimizer_states((*self.members, *self._shared_members())),
                "stages": {
                    module_id: {
                        **update.get_state(),
                        "engine": [update.engine.name, update.engine_reason],
                    }
                    for module_id, update in self._all_updates().items()
                },
                "generators": {
                    module_id: generator.get_state()
                    for module_id, generator in self._generators.items()
                },
                "scaler": {} if scaler is None else scaler.state_dict(),
                "plugin_states": {
                    name: dict(part) for name, part in self.calls.save_state().items()
                },
                "random": state.random_state(self.device),
            }
        )

    def set_state(self, saved: Mapping[str, Any], *, rebuild: bool = False) -> None:
        """Continue from there; modules that the state has besides are added.

        What does not fit is refused before anything is changed. With `rebuild` modules of another
        shape are built again with the spaces and options of the state.
        """
        check_bool("rebuild", rebuild)
        if not isinstance(saved, Mapping):
            raise RequestError(
                f"a state is what get_state gave, not a {type(saved).__name__}.",
                "load_state reads one from a folder",
            )
        fit.check_origin(saved, packages(self.calls.participants))
        with self._all_or_nothing(), ExitStack() as undo:
            self.build()
            fit.check_modules(saved, self.members)
            fit.refuse(fit.part_problems(saved, self.members, self.device))
            for module_id, weights in saved["modules"].items():
                member = self.members.get(module_id)
                if member is None:
                    self._add_saved(module_id, saved, rebuild=rebuild)
                elif rebuild and member.is_torch and not fit.fits(member.module, weights):
                    self._rebuild(module_id, saved)
            both = None if self.shared_update is None else self.shared_update.member
            scaler = self.precision.scaler
            fit.refuse(
                [
                    *fit.weight_problems(saved, self.members, both),
                    *fit.stage_problems(saved, self._all_updates(), scaler),
                ]
            )
            for module_id, options in saved.get("options", {}).items():
                with self._changing_options(module_id):
                    self.calls.set_overrides(module_id, {})
                    for plugin, values in options.items():
                        self.calls.set_options(plugin, module_id, without_masked(values))
            # What plugins and their modules keep by themselves, only they can tell to be unfit.
            self._load_foreign(saved, undo)
            undo.pop_all()
        for module_id in saved["modules"]:
            self.members[module_id].trainable = module_id not in saved["frozen"]
            if self.members[module_id].is_torch:
                self.modules[module_id].load_state_dict(saved["modules"][module_id])
            for plugin, extra in self.extra[module_id].items():
                extra.load_state_dict(saved["extra"][module_id][plugin])
        for module_id, update in self._all_updates().items():
            part = saved["stages"][module_id]
            update.set_state(part, saved["optimizers"].get(module_id, {}))
            if "engine" in part:
                self._engines.resume(update, *part["engine"])
        wanted = saved["modules_to_train"]
        by_function = callable(self.modules_to_train) or saved.get("chosen_by_function", False)
        if wanted is not None or not by_function:
            self.modules_to_train = None if wanted is None else set(wanted)
        if scaler is not None and saved["scaler"]:
            scaler.load_state_dict(saved["scaler"])
        for module_id, generator in saved.get("generators", {}).items():
            self.generator(module_id).set_state(generator)
        self.updates = saved["counters"]["updates"]
        self.timestep = saved["counters"]["timestep"]
        self._set_timestep(self.timestep)
        state.set_random_state(saved["random"], self.device)

    def get_generators(self) -> dict[str, Any]:
        """All random generators: each learner of a run has its own."""
        return {
            "training": {name: one.get_state() for name, one in self._generators.items()},
            "minibatches": {
                name: one.shuffler.get_state() for name, one in self._all_updates().items()
            },
            "random": state.random_state(self.device),
        }

    def set_generators(self, saved: Mapping[str, Any]) -> None:
        """Put all generators back."""
        for module_id, one in saved["training"].items():
            self.generator(module_id).set_state(one)
        for module_id, update in self._all_updates().items():
            update.shuffler.set_state(saved["minibatches"][module_id])
        state.set_random_state(saved["random"])

    def weight_digests(self) -> dict[str, str]:
        """Digests of weights and statistics, by name: they are the same in all learners of a run.

        What batch normalization keeps is each learner's own.
        """
        found = {}
        parts: dict[str, Any] = {
            one: self.modules[one] for one, member in self.members.items() if member.is_torch
        }
        for module_id, extras in self.extra.items():
            parts |= {f"{module_id}, {plugin}": extra for plugin, extra in extras.items()}
        for label, module in parts.items():
            own = {
                f"{name}.{buffer}" if name else buffer
                for name, part in module.named_modules()
                if isinstance(part, nn.modules.batchnorm._NormBase)
                for buffer, _ in part.named_buffers()
            }
            for name, value in module.state_dict().items():
                if name not in own:
                    found[f"{label}: {name}"] = state.digest(value)
        return found

    def optimizer_settings(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Learning rate, betas and the like, per optimizer and group of parameters.

        Not the learning rate of those that a scheduler moves.
        """
        self.build()
        return {
            (module_id, one.name): [
                {
                    key: value
                    for key, value in group.items()
                    if key not in ("params", "initial_lr")
                    and not (key == "lr" and one.scheduler is not None)
                }
                for group in one.optimizer.param_groups
            ]
            for module_id, member in {**self.members, **self._shared_members()}.items()
            for one in member.optimizers
        }

    def set_optimizer_settings(
        self, settings: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
    ) -> None:
        """Set them, over those of a state that was loaded."""
        check_by_module(settings, "settings of optimizers", "optimizer_settings")
        check_settings(settings, self.optimizer_settings())
        for (module_id, name), groups in settings.items():
            held = self.get_optimizer(module_id, name).param_groups
            for group, values in zip(held, groups, strict=True):
                group.update(values)
        self._set_timestep(self.timestep)

    def get_optimizer_state(
        self, module_ids: Sequence[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """The states of optimizers, by module id and name; None: of all modules."""
        return copy.deepcopy(self._optimizer_states(self._ids(module_ids)))

    def set_optimizer_state(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Load states of optimizers; what does not fit is refused before anything is changed."""
        members = {**self.members, **self._shared_members()}
        check_by_module(saved, "states of optimizers", "get_optimizer_state")
        for module_id, states in saved.items():
            member = members.get(module_id) or self.member(module_id)
            fit.compare_optimizers(member, states)
        for module_id, states in saved.items():
            for name, one in states.items():
                self.get_optimizer(module_id, name).load_state_dict(copy.deepcopy(one))
        self._set_timestep(self.timestep)

    def get_module_state(self, module_ids: Sequence[str] | None = None) -> dict[str, Any]:
        """The weights of modules as NumPy arrays; None: of all torch modules."""
        if module_ids is not None:
            check_ids("module_ids", module_ids, "or None for all torch modules")
        ids = [one for one in self.modules if self.members[one].is_torch]
        return {
            module_id: {
                name: value.detach().cpu().numpy().copy()
                for name, value in self._torch_module(module_id).state_dict().items()
            }
            for module_id in (ids if module_ids is None else module_ids)
        }

    def set_module_state(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Load weights from arrays or tensors; what does not fit is refused beforehand."""
        check_by_module(saved, "weights", "get_module_state")
        read: dict[str, dict[str, Tensor]] = {}
        for module_id, weights in saved.items():
            check_by_module(weights, f"weights of module {module_id!r}", "get_module_state")
            who = f"of module {module_id!r}"
            tensors = {name: weight_of(one, f"{name!r} {who}") for name, one in weights.items()}
            fit.compare(self._torch_module(module_id), tensors, f"module {module_id!r}")
            read[module_id] = tensors
        for module_id, tensors in read.items():
            self._torch_module(module_id).load_state_dict(tensors)

    def save_state(self, folder: Path | str) -> None:
        """Write the whole state to a folder, completely or not at all."""
        path, tree = state_folder(folder), self.get_state()
        try:
            replace_tree(path, tree)
        except (OSError, ValueError) as error:
            # ValueError: of a path that holds a null character.
            reason = getattr(error, "strerror", None) or str(error)
            raise RequestError(
                f"the state cannot be saved in {path}: {type(error).__name__}: {reason}.",
                "give a folder that can be made or written",
            ) from error

    def load_state(self, folder: Path | str, *, rebuild: bool = False) -> None:
        """Read the whole state back; see `set_state`."""
        self.set_state(read_tree(state_folder(folder)), rebuild=rebuild)

    # -- inside -------------------------------------------------------------------------------

    def _optimizer_states(self, module_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        return {
            module_id: {
                one.name: one.optimizer.state_dict() for one in self.optimizers.of(module_id)
            }
            for module_id in module_ids
        }

    def _shared_members(self) -> dict[str, Member]:
        return {} if self.shared_update is None else {ALL_MODULES: self.shared_update.member}

    def _ids(self, module_ids: Sequence[str] | None) -> Sequence[str]:
        """The ids of members, or of all that have optimizers."""
        if module_ids is not None:
            check_ids("module_ids", module_ids, "or None for all that have optimizers")
        known = [*self.module_updates, *self._shared_members()]
        for module_id in module_ids or ():
            if module_id not in known:
                self.member(module_id)
        return known if module_ids is None else module_ids

    def _torch_module(self, module_id: str) -> nn.Module:
        module = self.member(module_id).module
        if not isinstance(module, nn.Module):
            raise RequestError(
                f"module {module_id!r} is a {type(module).__name__}, which has no weights.",
                "leave it out",
            )
        return module

    def _load_foreign(self, saved: Mapping[str, Any], undo: ExitStack) -> None:
        """Load the states of plugins, and of modules that are none of torch."""
        for module_id, own in saved["modules"].items():
            module = self.modules[module_id]
            if not self.members[module_id].is_torch:
                undo.callback(_put_back, module.load_state_dict, copy.deepcopy(module.state_dict()))
                with _naming(f"the state of module {module_id!r}"):
                    module.load_state_dict(own)
        undo.callback(_put_back, self.calls.load_state, copy.deepcopy(self.calls.save_state()))
        with _naming("the state of a plugin"):
            self.calls.load_state(saved["plugin_states"])

    def _spaces_of(self, module_id: str) -> dict[str, Any]:
        observation, action = self.spaces.get(module_id, (None, None))
        training = self.training_spaces.get(module_id)
        return {"observation": observation, "action": action, "training": training}

    def _rebuild(self, module_id: str, saved: Mapping[str, Any]) -> None:
        """Build a module whose weights do not fit again, as the state has it."""
        spaces = fit.spaces_of(saved, module_id) or self._spaces_of(module_id)
        wanted = self.modules_to_train
        self.remove_module(module_id)
        self._build_saved(module_id, saved, spaces, rebuild=True)
        self.modules_to_train = wanted

    def _add_saved(self, module_id: str, saved: Mapping[str, Any], *, rebuild: bool) -> None:
        """Add a module that only the state has: of its own spaces, or else like the first one."""
        spaces = fit.spaces_of(saved, module_id)
        if spaces:
            self._build_saved(module_id, saved, spaces, rebuild=rebuild)
            return
        model = next((one for one in self.members.values() if one.is_torch), None)
        if "spaces" in saved or model is None:
            raise RequestError(
                f"the state has module {module_id!r}, which the learner lacks and no plugin built.",
                f"try: learner.add_module({module_id!r}, module=…) before",
            )
        self.add_module(module_id, like=model.module_id)

    def _build_saved(
        self,
        module_id: str,
        saved: Mapping[str, Any],
        spaces: Mapping[str, Any],
        *,
        rebuild: bool,
    ) -> None:
        """Build a module with the options it alone had; to rebuild it, with all that it had."""
        pair = spaces["observation"], spaces["action"]
        self.spaces[module_id] = pair
        if spaces.get("training") is not None:
            self.training_spaces[module_id] = spaces["training"]
        options = dict(saved.get("options", {}).get(module_id, {}))
        if rebuild:
            options = {**saved.get("plugin_options", {}), **options}
        for plugin, values in options.items():
            self.set_options(module_id, without_masked(values), plugin)
        self.add_module(module_id, pair)

    def _set_gradients(
        self, update: ModuleUpdate, gradients: Mapping[nn.Parameter, Any]
    ) -> list[nn.Parameter]:
        update.flat_gradients = None
        update.start(update.scheduled())
        params = [param for one in update.ready for param in one.params]
        for param in params:
            gradient = gradients.get(param)
            param.grad = None if gradient is None else like_parameter(gradient, param)
        update.metrics = {}
        return params

    def _parameters(self) -> list[nn.Parameter]:
        return [param for one in self.optimizers for param in one.params]


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Whatever a plugin raises becomes a refusal."""
    try:
        yield
    except RlplugError:
        raise
    except Exception as error:
        raise RequestError(
            f"{what} cannot be loaded: {type(error).__name__}: {error}",
            *getattr(error, "__notes__", ()),
        ) from error


def _put_back(load: Callable[[Any], object], state: Any) -> None:
    # What failed to load may fail again: the first error is the one to be told.
    with suppress(Exception):
        load(state)
