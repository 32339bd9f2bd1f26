"""Plain networks there and back without autograd: outputs, and gradients in closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy
import torch
from torch import Tensor, nn

from rlplug.nn.activations import Array
from rlplug.nn.arrays import ArrayForward, NoArraysError, Views
from rlplug.nn.encoders import FlatEncoder
from rlplug.nn.followed import is_followed
from rlplug.nn.stacks import Stack, Tape, read_layers

__all__ = ["ClosedForm", "Gradients", "Outputs", "Way", "renewed"]

Way: TypeAlias = "tuple[nn.Module, Sequence[nn.Module]]"
"""An encoder, and the layers from there to an output."""

Trace: TypeAlias = "tuple[Array, Tape]"


class Gradients(dict[str, Tensor]):
    """Gradients by the names of their parameters, side by side in one array.

    They are written again by the next backward pass: who keeps them copies them.
    """

    def __init__(self, names: Sequence[str], arrays: Sequence[Array], flat: Array) -> None:
        super().__init__(zip(names, map(torch.from_numpy, arrays), strict=True))
        self.arrays = arrays
        self.flat = flat
        """All their numbers."""
        self._ids = frozenset(map(id, self.values()))

    def are(self, gradients: Sequence[Tensor]) -> bool:
        """Whether these are all of them, in whatever order, and no others."""
        return len(gradients) == len(self) and self._ids.issuperset(map(id, gradients))


class ClosedForm:
    """Ways through a network that are nothing but linear layers and activations, in NumPy.

    It reads the weights where the network has them: optimizers move both.
    """

    def __init__(
        self,
        network: nn.Module,
        ways: Sequence[Way],
        prefix: str,
        beside: Sequence[nn.Parameter] = (),
    ) -> None:
        self._views = views = Views(noisy=False)
        for part in network.modules():
            for name, child in part._modules.items():
                if child is not None:
                    views.keep(part, name)
        names = {id(param): prefix + name for name, param in network.named_parameters()}
        self._encoders: list[ArrayForward] = []
        self._stacks: list[Stack] = []
        groups: list[Sequence[Tensor]] = []
        for encoder, layers in ways:
            if type(encoder) is not FlatEncoder:
                raise NoArraysError
            self._encoders.append(encoder.array_forward(views))
            self._stacks.append(_stack(views, layers))
            groups.append(self._stacks[-1].params)
        *self._by_way, others, self.gradients = _room_for([*groups, beside], names)
        """All of them, as the last backward passes left them."""
        self.beside = others.arrays
        """Where the gradients of what lies `beside` the ways are to be written."""

    @classmethod
    def of(
        cls,
        network: nn.Module,
        ways: Sequence[Way],
        prefix: str,
        beside: Sequence[nn.Parameter] = (),
    ) -> ClosedForm | None:
        """None if the network is not as plain, or not on the CPU.

        `prefix` is what stands before the names of the network's parameters; `beside` are those
        whose gradients the caller finds.
        """
        try:
            return cls(network, ways, prefix, beside)
        except NoArraysError:
            return None

    def current(self) -> bool:
        """Whether the weights are still those of the network."""
        return self._views.current()

    def forward(self, way: int, observations: Any) -> tuple[Array, Trace]:
        """One way's outputs, shape (outputs, rows), and what `backward` needs to know."""
        features = self._encoders[way](observations)
        outputs, tape = self._stacks[way].forward(features)
        return outputs, (features, tape)

    def outputs(self, way: int, observations: Any) -> Array:
        """The outputs alone."""
        return self._stacks[way].last_outputs(self._encoders[way](observations))

    def backward(self, way: int, trace: Trace, slopes: Array) -> Gradients:
        """The gradients of all parameters on a way, given that of its outputs."""
        found = self._by_way[way]
        if slopes.dtype != found.flat.dtype:
            slopes = slopes.astype(found.flat.dtype)
        self._stacks[way].backward(*trace, slopes, into=found.arrays)
        return found


class Shown(Protocol):
    """Something made of a network that may stop showing it."""

    def current(self) -> bool: ...


S = TypeVar("S", bound=Shown)


def renewed(made: list[S | None], make: Callable[[], S | None]) -> S | None:
    """What is kept in `made`, made anew once it is not current; None while torch is followed."""
    if is_followed():
        return None
    if not made or (made[0] is not None and not made[0].current()):
        made[:] = [make()]
    return made[0]


class Outputs(Mapping[str, Tensor]):
    """What `forward_train` gives where the loss may do without: computed once somebody reads it."""

    def __init__(self, names: tuple[str, ...], compute: Callable[[], Mapping[str, Tensor]]) -> None:
        self._names = names
        self._compute = compute
        self._known: Mapping[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if not self._known and name in self._names:
            self._known = self._compute()
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _stack(views: Views, layers: Sequence[nn.Module]) -> Stack:
    found = read_layers(layers)
    if found is None:
        raise NoArraysError
    for layer in found[0]:
        # Taking views refuses what is not on the CPU, and watches over the rest.
        views.of(layer, "weight")
        views.of(layer, "bias")
    return Stack(found)


def _room_for(groups: Sequence[Sequence[Tensor]], names: Mapping[int, str]) -> list[Gradients]:
    """Where the gradients of each group are written, all of them side by side."""
    params = [param for group in groups for param in group]
    if len({id(param) for param in params}) < len(params) or len({p.dtype for p in params}) > 1:
        # What lies on two ways gets a sum of two gradients, which nobody adds up here.
        raise NoArraysError
    flat = numpy.zeros(sum(param.numel() for param in params), params[0].detach().numpy().dtype)
    rooms: list[Gradients] = []
    start = 0
    for group in groups:
        first = start
        arrays = []
        for param in group:
            arrays.append(flat[start : start + param.numel()].reshape(param.shape))
            start += param.numel()
        rooms.append(Gradients([names[id(param)] for param in group], arrays, flat[first:start]))
    rooms.append(
        Gradients([names[id(p)] for p in params], [a for r in rooms for a in r.arrays], flat)
    )
    return rooms
