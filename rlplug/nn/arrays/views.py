"""Views of the weights of networks: to act in NumPy, and to run whole networks on a tape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import torch
from torch import nn

from rlplug.nn.arrays.array import Array
from rlplug.nn.arrays.mlp import (
    MLP,
    Activation,
    Layer,
    NumpyArray,
    activation_of,
    is_sequential,
    joined,
)

__all__ = ["ArrayForward", "FrozenWeights", "Views", "run_plain", "run_sequential"]

ArrayForward: TypeAlias = Callable[..., Any]
"""A forward pass on arrays; it changes nothing that it is given, and may give it back."""


class _Scope(threading.local):
    """The scope that a thread is in: what one does with its networks is no matter of others."""

    now: object | None = None


class FrozenWeights:
    """A scope in which no network gets other weights, so that looking once is enough.

    Looking takes longer than a small layer, and acting does it at every step. What optimizers
    write into weights everybody sees; only another tensor in the place of one is not noticed
    before the end.
    """

    __slots__ = ("_before",)

    scope: ClassVar[_Scope] = _Scope()
    """Its `now` tells one such scope of a thread from another; None outside of them."""

    def __init__(self) -> None:
        self._before: object | None = None

    def __enter__(self) -> None:
        scope = FrozenWeights.scope
        self._before, scope.now = scope.now, object()

    def __exit__(self, *_: Any) -> None:
        FrozenWeights.scope.now = self._before


class NoArraysError(Exception):
    """This module runs through torch only."""


@runtime_checkable
class HasArrayForward(Protocol):
    """A module that knows its own forward pass in NumPy."""

    def array_forward(self, views: Views) -> ArrayForward: ...


class Views:
    """Views of the weights of networks, and the means to see that they are still their weights.

    Optimizers, also fused ones, and `load_state_dict` write into the memory that a view shows, so
    a view goes stale only when a tensor or a part of the module is replaced by another one.
    Version counters would not do: fused optimizers do not move them.
    """

    def __init__(self, *, noisy: bool = False) -> None:
        self.noisy = noisy
        self.weights = 0
        self.forward: ArrayForward
        """The forward pass of the network that these are views of."""
        self._places: list[tuple[dict[str, Any], str]] = []
        self._addresses: list[int] = []
        self._slots: list[tuple[dict[str, Any], str]] = []
        self._parts: list[nn.Module] = []
        self._hooks: list[dict[int, Any]] = []
        self._seen: object = _NEVER

    @classmethod
    def of_network(cls, module: nn.Module, *, noisy: bool = False) -> Views | None:
        """Its forward pass in NumPy, or None if it has to go through torch."""
        views = cls(noisy=noisy)
        try:
            views.watch(module)
            views.forward = views.forward_of(module)
        except NoArraysError:
            return None
        return views

    def watch(self, network: nn.Module) -> None:
        """Notice when a part of a network is replaced, or gets a hook."""
        for module in network.modules():
            hooks = (module._forward_hooks, module._forward_pre_hooks)
            if any(hooks):
                raise NoArraysError
            self._hooks += hooks
            for name, part in module._modules.items():
                if part is not None:
                    self._slots.append((module._modules, name))
                    self._parts.append(part)

    def current(self) -> bool:
        """Whether every view still shows the weights of its network."""
        now = FrozenWeights.scope.now
        if now is self._seen:
            return True
        # This runs at every step: comparing whole lists is the fastest that Python has.
        try:
            current = (
                [table[name].data_ptr() for table, name in self._places] == self._addresses
                and [table[name] for table, name in self._slots] == self._parts
                and not any(self._hooks)
            )
        except (AttributeError, KeyError):
            return False
        if current:
            self._seen = _NEVER if now is None else now
        return current

    def of(self, module: nn.Module, name: str) -> NumpyArray:
        """A view of one parameter or buffer of a module."""
        table = module._parameters if name in module._parameters else module._buffers
        tensor = table[name]
        if tensor is None or tensor.device.type != "cpu" or tensor.dtype not in _DTYPES:
            raise NoArraysError
        self._places.append((table, name))
        self._addresses.append(tensor.data_ptr())
        self.weights += tensor.numel()
        return tensor.detach().numpy()

    def layer(self, module: nn.Module, *, weight: str = "weight", bias: str = "bias") -> Layer:
        """A linear layer of a module, by the names of its parameters."""
        has_bias = module._parameters[bias] is not None
        column = self.of(module, bias)[:, None] if has_bias else None
        return Layer(self.of(module, weight), column)

    def forward_of(self, module: nn.Module) -> ArrayForward:
        """The forward pass of one module."""
        if isinstance(module, HasArrayForward) and _speaks_for_itself(module):
            return module.array_forward(self)
        if type(module) is nn.Linear or is_sequential(module):
            return self.chain(module)
        activation = activation_of(module)
        if activation is None:
            raise NoArraysError
        return _copied(activation)

    def steps(self, modules: Iterable[nn.Module]) -> list[ArrayForward]:
        """The forward passes of modules that follow each other, as few as possible."""
        return [
            step if isinstance(step, MLP) else self.forward_of(step)
            for step in joined(modules, self.layer)
        ]

    def chain(self, *modules: nn.Module) -> ArrayForward:
        """Modules one after the other."""
        first, *others = self.steps(modules) or [_unchanged]

        def forward(features: Any) -> Any:
            features = first(features)
            for step in others:
                features = step(features)
            return features

        return forward if others else first

    def stateless(self, *modules: nn.Module) -> ArrayForward:
        """What a network without memory does to observations, whatever its state."""
        steps = tuple(self.steps(modules))

        def forward(observations: Any, state: Any) -> tuple[Any, None]:
            for step in steps:
                observations = step(observations)
            return observations, None

        return forward


def _speaks_for_itself(module: nn.Module) -> bool:
    """Whether its NumPy pass was written for its pass in torch, which no subclass overrides."""
    for kind in type(module).__mro__:
        if not vars(kind).keys().isdisjoint(("array_forward", "array_values")):
            return True
        if not vars(kind).keys().isdisjoint(("forward", "step", "values")):
            return False
    return False


def _copied(activation: Activation) -> ArrayForward:
    """An activation alone: somebody else's array is not its to change."""

    def apply(x: NumpyArray) -> NumpyArray:
        own = x.copy()
        activation.apply(own)
        return own

    return apply


def _unchanged(features: Any) -> Any:
    return features


_NEVER = object()

_DTYPES = (torch.float32, torch.float64)


# -- networks on a tape ----------------------------------------------------------------------------


def run_sequential(layers: nn.Sequential, features: Any) -> Any:
    """`layers(features)`; arrays pass plain layers that follow each other in one operation."""
    if type(features) is Array:
        steps = _steps_on_tape(features, layers, layers.children)
        if steps is not None and features.value.dtype is features.tape.flat.dtype:
            for step in steps:
                features = step.run(features) if type(step) is MLP else step(features)
            return features
    return nn.Sequential.forward(layers, features)  # type: ignore[no-untyped-call] # as in torch


def run_plain(
    owner: nn.Module, features: Array, layers: Callable[[], Iterable[nn.Module]]
) -> Array | None:
    """Layers of a network one after the other, in one operation; None if they are not plain.

    They are asked for once: the tape watches the parts of their `owner` and the hooks on them.
    """
    steps = _steps_on_tape(features, owner, layers)
    if steps is None or len(steps) != 1 or type(steps[0]) is not MLP:
        return None
    value = features.value
    if value.ndim != 2 or value.dtype is not features.tape.flat.dtype:
        return None
    return steps[0].run(features)


def _steps_on_tape(
    features: Array, owner: nn.Module, layers: Callable[[], Iterable[nn.Module]]
) -> list[Any] | None:
    """Plain layers as MLPs, and what is between them; None where hooks are to be called."""
    tape = features.tape
    networks: dict[int, Any] = tape.networks
    if id(owner) not in networks:
        networks[id(owner)] = None

        def read(layer: nn.Linear) -> Layer | None:
            if layer.weight.dtype is not tape.trained[0].dtype:
                return None
            views: Views = tape.views
            bias = None if layer.bias is None else tape.leaf(layer.bias)
            return views.layer(layer)._replace(leaf=tape.leaf(layer.weight), bias=bias)

        try:
            parts = list(layers())
            within = set(owner.modules())
            for module in (owner, *(part for part in parts if part not in within)):
                tape.views.watch(module)
            networks[id(owner)] = joined(parts, read)
        except NoArraysError:
            pass
    steps: list[Any] | None = networks[id(owner)]
    return steps
