"""Parameters that several modules hold, gathered under ALL_MODULES."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import nn

from rlplug.learner.member import Member
from rlplug.plugin import Module

__all__ = ["SharedParameters", "find_shared"]


class SharedParameters(Module):
    """What modules share, under the names that the first of them gives it."""

    def __init__(self, members: Iterable[Member], shared: frozenset[int]) -> None:
        super().__init__()
        seen: set[int] = set()
        for member in members:
            for name, param in member.named.items():
                if id(param) in shared and id(param) not in seen:
                    seen.add(id(param))
                    _hang(self, name.split("."), param)


def find_shared(members: Iterable[Member]) -> frozenset[int]:
    """The ids of parameters that more than one module holds."""
    counts = Counter(
        id(param) for member in members for param in dict.fromkeys(member.named.values())
    )
    return frozenset(found for found, count in counts.items() if count > 1)


def _hang(root: nn.Module, path: list[str], param: nn.Parameter) -> None:
    *parents, name = path
    place = root
    for parent in parents:
        if parent not in place._modules:
            place.add_module(parent, nn.Module())
        place = place.get_submodule(parent)
    place.register_parameter(name, param)
