"""Target networks: slow copies of a network, part of its module, that know when to follow it."""

from __future__ import annotations

import copy
from operator import is_
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from rlplug.errors import RequestError
from rlplug.optim.steps import NoGrad

__all__ = ["FixedTarget", "PolyakTarget", "TargetNetwork", "TrivialTarget"]

Pair: TypeAlias = "tuple[list[Tensor], list[Tensor]]"

TargetT = TypeVar("TargetT", bound="TargetNetwork")


class TargetNetwork(nn.Module):
    """A network that follows another one, its source, and is never trained itself.

    `target = FixedTarget(500).init(network)`, as a part of the same module as the network: then it
    is saved, moved and copied with it. `update` is called once after each optimizer step.
    """

    clock: Tensor
    """How far `update` has counted: a buffer, so that a resumed run copies when it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64))
        # In a tuple, so that it is not registered: it belongs to the module, not to its target.
        self._source: tuple[nn.Module, ...] = ()
        self._counted: tuple[Tensor, int, int, Any] | None = None
        """The clock, its version, what it says, and an array that shows it if one can."""
        self._listed: _Pairs | None = None

    def init(self: TargetT, model: nn.Module) -> TargetT:
        """Follow this network from now on."""
        self.model = copy.deepcopy(model).requires_grad_(False)
        self._source = (model,)
        return self

    @property
    def follows(self) -> bool:
        """Whether it follows a network already."""
        return bool(self._source)

    @property
    def source(self) -> nn.Module:
        """The network that is followed."""
        return self._source[0]

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What the target network gives, without gradients."""
        if not torch.is_grad_enabled():
            return self.model(*inputs, **options)
        with torch.no_grad():
            return self.model(*inputs, **options)

    def update(self, timestep: int | None = None) -> bool:
        """Count one update, and follow the source if it is time; whether it was."""
        raise TypeError(f"{type(self).__name__} must define update")

    def copy(self) -> None:
        """Take over all parameters and buffers of the source, exactly."""
        pairs = self._pairs()
        with NoGrad():
            _copy(*pairs.params)
            _copy(*pairs.buffers)

    def _pairs(self) -> _Pairs:
        """What of the copy follows what of the source; listed once, for listing takes long."""
        source, pairs = self.source, self._listed
        if pairs is None or not pairs.current():
            pairs = vars(self)["_listed"] = _Pairs(self.model, source)
        return pairs

    def _count(self, now: int | None = None) -> tuple[int, int]:
        """Advance the clock, by one or to `now`; what it was and what it is."""
        # Past nn.Module's slow attributes, which would be most of the time here.
        clock = self._buffers["clock"]
        assert clock is not None
        counted = self._counted
        # The number is remembered, so that a clock on another device is not waited for.
        if counted is not None and counted[0] is clock and counted[1] == clock._version:
            before, shown = counted[2:]
        else:
            before, shown = int(clock), clock.numpy() if clock.is_cpu else None
        after = before + 1 if now is None else now
        if shown is None:
            clock.fill_(after)
        else:
            shown.fill(after)
        vars(self)["_counted"] = (clock, clock._version, after, shown)
        return before, after

    def __getstate__(self) -> dict[str, Any]:
        """All but what is remembered of clock and tensors: a copy has its own."""
        return {**self.__dict__, "_counted": None, "_listed": None}


class FixedTarget(TargetNetwork):
    """A copy that is renewed every `update_frequency` updates, or environment steps.

    In steps, it is renewed by the first update after each multiple of the interval is crossed.
    """

    def __init__(self, update_frequency: int, unit: Literal["update", "step"] = "update") -> None:
        super().__init__()
        self.update_frequency = update_frequency
        self.unit = unit

    def update(self, timestep: int | None = None) -> bool:
        """Count one update, and copy the source if the interval is over; whether it was."""
        if self.unit == "step" and timestep is None:
            raise RequestError(
                "a target with an interval in steps was updated without a timestep.",
                "try: target.update(timestep)",
            )
        before, after = self._count(timestep if self.unit == "step" else None)
        due = before // self.update_frequency != after // self.update_frequency
        if due:
            self.copy()
        return due


class PolyakTarget(TargetNetwork):
    """A copy that moves by `rate` of its distance to the source; its buffers are copied."""

    def __init__(self, rate: float, update_frequency: int = 1) -> None:
        super().__init__()
        self.rate = rate
        self.update_frequency = update_frequency

    def update(self, timestep: int | None = None) -> bool:
        """Count one update, and move towards the source if the interval is over."""
        _, after = self._count()
        due = after % self.update_frequency == 0
        if due:
            self._follow()
        return due

    def _follow(self) -> None:
        pairs = self._pairs()
        with NoGrad():
            torch._foreach_lerp_(*pairs.params, self.rate)
            _copy(*pairs.buffers)


class TrivialTarget(TargetNetwork):
    """No copy: the source itself, without gradients."""

    def init(self, model: nn.Module) -> TrivialTarget:
        """Follow this network from now on."""
        self._source = (model,)
        return self

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What the source gives, without gradients."""
        with torch.no_grad():
            return self.source(*inputs, **options)

    def update(self, timestep: int | None = None) -> bool:
        """Count one update."""
        self._count()
        return True

    def copy(self) -> None:
        """Nothing: there is no copy."""


class _Pairs:
    """The tensors of a copy and of its source, until one of them gets another."""

    def __init__(self, model: nn.Module, source: nn.Module) -> None:
        self.params: Pair = ([*model.parameters()], [*source.parameters()])
        self.buffers: Pair = ([*model.buffers()], [*source.buffers()])
        self._tables: list[dict[str, Any]] = [
            table
            for part in (*model.modules(), *source.modules())
            for table in (part._parameters, part._buffers, part._modules)
        ]
        self._held = self._look()

    def current(self) -> bool:
        """Whether nothing was put in another's place, or beside the others."""
        held = self._look()
        return len(held) == len(self._held) and all(map(is_, held, self._held))

    def _look(self) -> list[Any]:
        return [held for table in self._tables for held in table.values()]


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)
