"""One module of the learner with its extras, its optimizers and the owners of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from rlplug.errors import PluginError, RequestError, RlplugError
from rlplug.learner.optimizers import RegisteredOptimizer


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
        self.checked = False
        """Whether a batch for it was looked at."""
        self.is_torch = isinstance(module, nn.Module)
        """Whether there can be gradients at all."""
        self.has_state = hasattr(module, "state_dict") and hasattr(module, "load_state_dict")
        """Whether the module brings weights or a state of its own."""
        initial_state = getattr(module, "initial_state", None)
        self.sequences = initial_state is not None and initial_state(1) is not None
        """Whether it has memory, so that its fragments stay whole."""
        self.shared: frozenset[int] = frozenset()
        """Ids of parameters that other modules hold as well."""
        self.optimizers: list[RegisteredOptimizer] = []
        self.named: dict[str, nn.Parameter] = {}
        if self.is_torch:
            self.named.update(module.named_parameters())
        self.owners = dict.fromkeys(self.named, algorithm)
        for plugin, extra in self.extras.items():
            for name, param in extra.named_parameters(prefix=plugin):
                if name in self.named:
                    raise PluginError(
                        f"module {module_id!r} has a part named like plugin {plugin!r}: "
                        f"{name!r} would mean two parameters.",
                        "rename the part of the module",
                    )
                self.named[name], self.owners[name] = param, plugin

    @property
    def shared_params(self) -> list[nn.Parameter]:
        """Parameters that other modules hold as well."""
        return [param for param in self.named.values() if id(param) in self.shared]

    def load(self, weights: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        """Load the states of the module and of its extras."""
        if self.has_state:
            load_part(self.module, weights, f"module {self.module_id!r}")
        for plugin, extra in self.extras.items():
            what = f"the extra of plugin {plugin!r} for module {self.module_id!r}"
            if plugin not in extras:
                raise misfit(f"the state has no {what}.")
            load_part(extra, extras[plugin], what)

    def parts(self) -> list[nn.Module]:
        """The module and its extras, those that are torch modules."""
        return [self.module, *self.extras.values()] if self.is_torch else []

    def names_of(self, plugin: str) -> list[str]:
        """The parameters that a plugin owns."""
        return [name for name, owner in self.owners.items() if owner == plugin]

    def own(self, plugin: str) -> list[nn.Parameter]:
        """What a plugin may optimize here: trained by it and held by no other module."""
        params = [self.named[name] for name in self.names_of(plugin)]
        return [param for param in params if param.requires_grad and id(param) not in self.shared]

    def owner_of(self, optimizer: Any) -> str:
        """The plugin whose parameters an optimizer holds; the algorithm where nobody's."""
        names = {id(param): name for name, param in self.named.items()}
        held = [id(param) for group in optimizer.param_groups for param in group["params"]]
        return next((self.owners[names[key]] for key in held if key in names), self.algorithm)


def load_part(module: Any, weights: Mapping[str, Any], what: str) -> None:
    """Load a state dict; what does not fit is refused, and may have been loaded in part."""
    try:
        module.load_state_dict(weights)
    except RlplugError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise misfit(f"the state does not fit {what}: {reason}") from error


def misfit(what: str, *notes: str) -> RequestError:
    """The error of a state that does not fit a learner."""
    return RequestError(
        what, *notes, "use the options, plugins and spaces of the run that saved it"
    )
