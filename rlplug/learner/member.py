"""One module of the learner with its extras, its optimizers and the owners of its parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from rlplug.errors import PluginError, RequestError, RlplugError
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.plugin import Module

__all__ = [
    "Member",
    "SharedParameters",
    "check_shared",
    "find_shared",
    "load_part",
    "refuse_to_share",
]


class Member:
    """A module, its extras, its optimizers, and who owns which parameter."""

    def __init__(
        self, module_id: str, module: Any, extras: Mapping[str, nn.Module], algorithm: str
    ) -> None:
        self.module_id = module_id
        self.module = module
        self.extras = dict(extras)
        self.algorithm = algorithm
        self.trainable = True
        self.has_forward = callable(getattr(module, "forward_train", None))
        """Whether it can compute what losses are made of."""
        self.shared: frozenset[int] = frozenset()
        """Ids of parameters that other modules hold as well."""
        self.named: dict[str, nn.Parameter] = {}
        self.owners: dict[str, str] = {}
        self._name_parameters()
        self.optimizers: list[RegisteredOptimizer] = []
        self.sequences = getattr(module, "initial_state", _no_state)(1) is not None
        """Whether it has memory, so that its fragments stay whole."""

    @property
    def shared_params(self) -> list[nn.Parameter]:
        """Parameters that other modules hold as well."""
        return [param for param in self.named.values() if id(param) in self.shared]

    @property
    def is_torch(self) -> bool:
        """Whether there can be gradients at all."""
        return isinstance(self.module, nn.Module)

    @property
    def has_state(self) -> bool:
        """Whether the module brings weights or a state of its own."""
        return hasattr(self.module, "state_dict") and hasattr(self.module, "load_state_dict")

    def check_forward(self) -> None:
        """Refuse to train what computes nothing for a loss."""
        if not self.has_forward:
            base = " of rlplug.Module" if self.is_torch else ""
            raise RequestError(
                f"module {self.module_id!r} is a {type(self.module).__name__}, which has no "
                "forward_train.",
                f"leave it out, or give add_module a module{base} that has one",
            )

    def load(self, weights: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        """Load the states of the module and of its extras."""
        if self.has_state:
            load_part(self.module, weights, f"module {self.module_id!r}")
        for plugin, extra in self.extras.items():
            what = f"the extra of plugin {plugin!r} for module {self.module_id!r}"
            if plugin not in extras:
                raise RequestError(f"the state has no {what}.", _HINT)
            load_part(extra, extras[plugin], what)

    def copy_weights(self, source: Member) -> None:
        """Take over the weights of another module and its extras, or refuse what does not fit."""
        extras = {plugin: extra.state_dict() for plugin, extra in source.extras.items()}
        self.load(source.module.state_dict(), extras)

    def parts(self) -> Iterable[nn.Module]:
        """The module and its extras, those that are torch modules."""
        return (
            part for part in (self.module, *self.extras.values()) if isinstance(part, nn.Module)
        )

    def names_of(self, plugin: str) -> list[str]:
        """The parameters that a plugin owns."""
        return [name for name, owner in self.owners.items() if owner == plugin]

    def own(self, plugin: str) -> list[nn.Parameter]:
        """What a plugin may optimize here: trained by it and held by no other module."""
        return [
            self.named[name]
            for name in self.names_of(plugin)
            if self.named[name].requires_grad and id(self.named[name]) not in self.shared
        ]

    def owner_of(self, params: Iterable[nn.Parameter]) -> str:
        """The plugin whose parameters these are; the algorithm where nobody's."""
        plugins = {id(param): self.owners[name] for name, param in self.named.items()}
        return next(
            (plugins[id(param)] for param in params if id(param) in plugins), self.algorithm
        )

    def check_owned(self, one: RegisteredOptimizer) -> None:
        """Refuse an optimizer over parameters that its plugin does not own."""
        names = {id(param): name for name, param in self.named.items()}
        for param in one.params:
            name = names.get(id(param))
            where = f"optimizer {one.name!r} of plugin {one.plugin!r} for module {self.module_id!r}"
            if name is None:
                raise PluginError(
                    f"{where} holds a parameter of shape {tuple(param.shape)} that is neither in "
                    "the module nor in an extra.",
                    "return what holds it from 'build' or 'build_extra'",
                )
            if self.owners[name] != one.plugin:
                raise PluginError(
                    f"{where} holds {name!r}, which belongs to {self.owners[name]!r}.",
                    "optimize your own parameters; to change others', use postprocess_gradients",
                )
            if id(param) in self.shared:
                raise PluginError(
                    f"{where} holds {name!r}, which other modules share.",
                    "optimize it where module_id is rlplug.ALL_MODULES",
                )

    def _name_parameters(self) -> None:
        if self.is_torch:
            for name, param in self.module.named_parameters():
                self.named[name] = param
                self.owners[name] = self.algorithm
        for plugin, extra in self.extras.items():
            for name, param in extra.named_parameters():
                full = f"{plugin}.{name}"
                if full in self.named:
                    raise PluginError(
                        f"module {self.module_id!r} has a part named like plugin {plugin!r}: "
                        f"{full!r} would mean two parameters.",
                        "rename the part of the module",
                    )
                self.named[full] = param
                self.owners[full] = plugin


def load_part(module: Any, weights: Mapping[str, Any], what: str) -> None:
    """Load a state dict; what does not fit is refused, and may have been loaded in part."""
    try:
        module.load_state_dict(weights)
    except RlplugError:
        raise
    except Exception as error:
        raise RequestError(
            f"the state does not fit {what}: {type(error).__name__}: {error}", _HINT
        ) from error


class SharedParameters(Module):
    """The parameters that modules share, under the names that the first of them gives them.

    Where these name one of other modules already, they begin with the module's id.
    """

    def __init__(self, members: Iterable[Member], shared: frozenset[int]) -> None:
        super().__init__()
        seen: set[int] = set()
        names: set[str] = set()
        for member in members:
            for name, param in member.named.items():
                if id(param) in shared and id(param) not in seen:
                    seen.add(id(param))
                    first = (
                        [f"module {member.module_id.replace('.', '_')}"] if name in names else []
                    )
                    names.add(name)
                    _register(self, [*first, *name.split(".")], param)


def check_shared(one: RegisteredOptimizer, both: Member, members: Iterable[Member]) -> None:
    """Refuse an optimizer of what modules share over parameters that one module has alone."""
    shared = {id(param) for param in both.named.values()}
    alone = {id(param): param for param in one.params if id(param) not in shared}
    for member in members:
        for name, param in member.named.items():
            if id(param) in alone:
                raise PluginError(
                    f"optimizer {one.name!r} of plugin {one.plugin!r} for {both.module_id!r} holds "
                    f"{name!r} of module {member.module_id!r}, which no other module shares.",
                    f"optimize it where module_id is {member.module_id!r}",
                )


def find_shared(members: Iterable[Member]) -> frozenset[int]:
    """The ids of parameters that more than one module holds."""
    counts = Counter(
        id(param) for member in members for param in dict.fromkeys(member.named.values())
    )
    return frozenset(found for found, count in counts.items() if count > 1)


def refuse_to_share(members: Iterable[Member], more: frozenset[int]) -> None:
    """Refuse to train parameters, given by ids, that came to be shared after others."""
    for member in members:
        for name, param in member.named.items():
            if member.trainable and param.requires_grad and id(param) in more:
                raise PluginError(
                    f"module {member.module_id!r} shares {name!r} with a module that was added "
                    "later; what modules share has its optimizers already, which do not hold it.",
                    "build modules that share parameters together, from the start",
                )


def _register(root: nn.Module, path: list[str], param: nn.Parameter) -> None:
    *parents, name = path
    place = root
    for parent in parents:
        if parent not in place._modules:
            place.add_module(parent, nn.Module())
        place = place.get_submodule(parent)
    place.register_parameter(name, param)


_HINT = "use the options and spaces of the run that saved it"


def _no_state(n: int) -> None:
    return None
