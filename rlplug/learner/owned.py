"""What a learner owns: modules, extras, optimizers, a device; and how to look things up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.errors import PluginError, RequestError, did_you_mean
from rlplug.learner import state
from rlplug.learner.alike import Alike
from rlplug.learner.assembly import assemble, forget, make_member
from rlplug.learner.device import Chosen
from rlplug.learner.optimizers import Optimizers, Registered, set_rate
from rlplug.learner.peers import Peers
from rlplug.learner.precision import Precision
from rlplug.learner.stage import Stage
from rlplug.nn.standing import Standing
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE, Module

if TYPE_CHECKING:
    import gymnasium

    from rlplug.batch import Batch
    from rlplug.hooks.calls import HookCalls
    from rlplug.learner.member import Member

__all__ = ["Owned", "ToTrain"]

ToTrain: TypeAlias = "Collection[str] | Callable[[str, Batch], bool] | None"


class Owned:
    """Builds, registers, adds, removes, saves and loads; `Learner` makes updates of it."""

    def __init__(
        self,
        calls: HookCalls,
        spaces: Mapping[str, tuple[gymnasium.Space[Any], gymnasium.Space[Any]]],
        *,
        seed: int,
        learning: LearnerSection | None = None,
        compute: ComputeSection | None = None,
        modules: Mapping[str, Any] | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.calls = calls
        self.spaces: dict[str, Any] = dict(spaces)
        self.seed = seed
        self.learning = LearnerSection() if learning is None else learning
        self.compute = ComputeSection() if compute is None else compute
        self.peers = Peers() if peers is None else peers
        self.chosen: Chosen | None = None
        """The device, and why it is this one."""
        self.precision = Precision(ComputeSection(), torch.device("cpu"))
        self.timestep = 0
        self.updates = 0
        self.modules_to_train: ToTrain = None
        """None for all, the ids of some, or a function of module id and batch."""
        self.modules: dict[str, Module] = {}
        self.extra: dict[str, dict[str, nn.Module]] = {}
        self.optimizers = Optimizers()
        self.members: dict[str, Member] = {}
        self.stages: dict[str, Stage] = {}
        self.shared_stage: Stage | None = None
        self.rows: dict[str, dict[str, Tensor]] = {}
        """Per-row values of the last update (`priority`), with their `indices`, by module."""
        self.followers: list[Registered] = []
        self.prepares = calls.implements("prepare_batch")
        # Of add-ons nobody knows what they put in the place of a weight in the midst of an update.
        self.standing: AbstractContextManager[None] = nullcontext() if calls.addons else Standing()
        self.keeps_parts = False
        self.kept_parts: dict[str, list[dict[str, Any]]] = {}
        self.registered_metrics: dict[str, dict[str, Any]] = {}
        self._given = dict(modules or {})

    def build(self) -> None:
        """Make modules, extras and optimizers; a second call changes nothing."""
        ids = [
            one for one in dict.fromkeys([*self.spaces, *self._given]) if one not in self.members
        ]
        if ids:
            assemble(self, [make_member(self, one, self._given.get(one)) for one in ids])
            self.alike = Alike(self)

    @property
    def device(self) -> torch.device:
        """Where modules and batches are."""
        return torch.device("cpu") if self.chosen is None else self.chosen.device

    @property
    def dtype(self) -> torch.dtype:
        """The format of weights, and of the columns that modules with optimizers get."""
        return torch.float64 if self.compute.dtype == "float64" else torch.float32

    @property
    def world_size(self) -> int:
        """How many learners share each update."""
        return self.peers.size

    def all_reduce(self, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        """The tensors combined over all learners (`sum`, `mean`, `max`)."""
        return self.peers.all_reduce(tensors, op)

    def register_metric(self, module_id: str, name: str, value: Any) -> None:
        """Report a number or a 0-d tensor with the module's next results."""
        self.registered_metrics.setdefault(module_id, {})[name] = value

    def register_metrics(self, module_id: str, metrics: Mapping[str, Any]) -> None:
        """Report several."""
        self.registered_metrics.setdefault(module_id, {}).update(metrics)

    # -- modules -------------------------------------------------------------------------------

    def member(self, module_id: str) -> Member:
        """A module with all that belongs to it."""
        found = self.members.get(module_id)
        if found is None:
            hint = did_you_mean(module_id, self.members, sentence=True)
            raise RequestError(
                f"the learner has no module {module_id!r}. {hint}".rstrip(),
                f"it has: {', '.join(self.members) or 'none: call build() first'}",
            )
        return found

    def add_module(
        self,
        module_id: str,
        spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | None = None,
        *,
        module: Any = None,
        like: str = "",
        trainable: bool = True,
    ) -> Module:
        """Add a module in mid-training: a new one, the one given, or a copy `like` another.

        `trainable=False` is for frozen opponents: they act and are saved, and never change.
        """
        if module_id in self.members:
            raise RequestError(f"the learner has a module {module_id!r} already.")
        if like:
            self.spaces[module_id] = self.spaces.get(self.member(like).module_id, (None, None))
        elif spaces is not None:
            self.spaces[module_id] = spaces
        elif module is None:
            raise RequestError(
                f"module {module_id!r} needs its spaces.", "or name another one: like='default'"
            )
        member = make_member(self, module_id, module)
        member.trainable = trainable
        assemble(self, [member])
        if like:
            source = self.member(like)
            member.module.load_state_dict(source.module.state_dict())
            for plugin, extra in member.extras.items():
                extra.load_state_dict(source.extras[plugin].state_dict())
        self.alike = Alike(self)
        return self.modules[module_id]

    def remove_module(self, module_id: str) -> None:
        """Remove a module with its extras and optimizers."""
        forget(self, self.member(module_id))
        self.alike = Alike(self)

    # -- optimizers ----------------------------------------------------------------------------

    def register_optimizer(
        self,
        module_id: str,
        optimizer_name: str,
        optimizer: torch.optim.Optimizer,
        params: Sequence[nn.Parameter] | None = None,
        lr_or_lr_schedule: Any = None,
    ) -> None:
        """Take in an optimizer; a schedule is `[[step, value], …]` over environment steps."""
        one = Registered(module_id, optimizer_name, "", optimizer)
        if params is not None and {id(p) for p in params} != {id(p) for p in one.params}:
            raise PluginError(
                f"optimizer {optimizer_name!r} of module {module_id!r} was made from other "
                "parameters than it is registered with.",
                "give register_optimizer the list that the optimizer was made from",
            )
        set_rate(one, lr_or_lr_schedule)
        if module_id != ALL_MODULES:
            # Before it is taken in: a refusal leaves the learner as it was.
            member = self.member(module_id)
            one.plugin = member.owner_of(one.params)
            member.check_owned(one)
        self.optimizers.add(one)
        if module_id in self.members:
            self.adopt(self.member(module_id))

    def adopt(self, member: Member) -> None:
        """Let a module's registered optimizers take part in its updates."""
        member.optimizers = self.optimizers.of(member.module_id)
        for one in member.optimizers:
            one.plugin = one.plugin or member.owner_of(one.params)
            member.check_owned(one)
        self.followers = [one for one in self.optimizers if one.rates]
        for one in self.followers:
            one.at_step(self.timestep)
        if member.optimizers and member.module_id != ALL_MODULES:
            self.stages[member.module_id] = Stage(member, self)

    def get_optimizer(
        self, module_id: str = DEFAULT_MODULE, optimizer_name: str = "default"
    ) -> torch.optim.Optimizer:
        """One optimizer by its module and its name."""
        return self.optimizers.get(module_id, optimizer_name).optimizer

    def get_optimizers_for_module(
        self, module_id: str = DEFAULT_MODULE
    ) -> list[tuple[str, torch.optim.Optimizer]]:
        """All optimizers of a module with their names."""
        return [(one.name, one.optimizer) for one in self.optimizers.of(module_id)]

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything that the next update depends on, as a tree of tensors and plain values."""
        return state.get_state(self)

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Go on from there; modules are added and removed as the state has them."""
        state.set_state(self, saved)

    def get_module_state(self, module_ids: Sequence[str] | None = None) -> dict[str, Any]:
        """The weights of modules as NumPy arrays."""
        return state.module_state(self, module_ids)

    def set_module_state(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Take weights back, from arrays or tensors."""
        state.set_module_state(self, saved)

    def save_state(self, folder: Path | str) -> None:
        """Write the whole state to a folder, completely or not at all."""
        state.save(self, Path(folder))

    def load_state(self, folder: Path | str) -> None:
        """Read the whole state back."""
        state.load(self, Path(folder))
