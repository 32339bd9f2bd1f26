"""Algorithms and add-ons that were handed over as classes and instances, not named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.errors import RequestError
from rlplug.hooks.calls import Participant
from rlplug.plugin import AddOn, Algorithm
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, describe

if TYPE_CHECKING:
    from rlplug.runs.prepare import Prepared

__all__ = ["Given"]


@attrs.frozen(kw_only=True)
class Given:
    """What `rlplug.run` was given, with names for what had none."""

    algorithm: str
    addons: tuple[str, ...]
    found: tuple[FoundPlugin, ...]
    """What has no installed name."""
    instances: Mapping[str, AddOn]

    @classmethod
    def of(cls, algorithm: str | type[Algorithm], addons: Sequence[str | AddOn]) -> Given:
        """Name the classes and instances among these after their classes."""
        found = []
        if not isinstance(algorithm, str):
            if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
                raise RequestError(
                    f"algorithm must be a name or a class of rlplug.Algorithm, got {algorithm!r}.",
                    "try: the class itself, not an instance",
                )
            found.append(describe(_name(algorithm), algorithm, ALGORITHM))
            algorithm = _name(algorithm)
        instances = {}
        for one in addons:
            if isinstance(one, AddOn):
                found.append(describe(_name(type(one)), type(one), ADDON))
                instances[_name(type(one))] = one
            elif not isinstance(one, str):
                raise RequestError(
                    f"addons must be names or instances of rlplug.AddOn, got {one!r}.",
                    f"try: {getattr(one, '__name__', 'MyAddOn')}()",
                )
        names = tuple(one if isinstance(one, str) else _name(type(one)) for one in addons)
        return cls(algorithm=algorithm, addons=names, found=tuple(found), instances=instances)

    def put_into(self, prepared: Prepared) -> Prepared:
        """Let the instances themselves take part, with the options they were made with."""
        addons = tuple(self._itself(one) for one in prepared.addons)
        options = {one.name: one.config for one in addons}
        return attrs.evolve(
            prepared, addons=addons, config=attrs.evolve(prepared.config, addons=options)
        )

    def _itself(self, one: Participant) -> Participant:
        instance = self.instances.get(one.name)
        return one if instance is None else Participant(one.found, instance, instance.config)


def _name(kind: type[Any]) -> str:
    """`GradNoise` → `grad-noise`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", kind.__name__).lower().strip("-")
