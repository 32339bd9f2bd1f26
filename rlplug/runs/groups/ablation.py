"""The groups of an ablation: a run with all add-ons, and without each of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from rlplug.errors import RequestError
from rlplug.registry import ADDON, ALGORITHM, Registry
from rlplug.runs.request import Request, layers_of

__all__ = ["variants"]


def variants(
    request: Request, addons: Sequence[str], without: Sequence[str], registry: Registry
) -> dict[str, Request]:
    """The run with all add-ons, named by an empty string, and without each of some of them.

    An add-on that is only left out takes part in the whole; without any, each is left out in turn.
    """
    every = list(dict.fromkeys([*addons, *without]))
    if not every:
        hints = ("try: rlplug ablate --algo NAME --without ADDON", "see: rlplug plugins list")
        raise RequestError("no add-on was named: there is nothing to leave out.", *hints)
    for name in every:
        registry.find(ADDON, name)
    whole = _with(request, "run", addons=every)
    return {"": whole, **{name: _leave_out(whole, name, registry) for name in without or every}}


def _leave_out(whole: Request, addon: str, registry: Registry) -> Request:
    """Without the add-on, and without options that nobody else takes."""

    def options(kind: Any) -> set[str]:
        return {field.name for field in attrs.fields(kind.Config)}

    algorithm = registry.find(ALGORITHM, layers_of(whole).section("run", "algorithm"))
    own = options(registry.load(registry.find(ADDON, addon)))
    own -= options(registry.load(algorithm))
    prefix = f"addons.{addon.rpartition(':')[2]}."
    kept = [
        setting
        for setting in whole.settings
        if not setting.key.startswith(prefix) and setting.key not in own
    ]
    others = [name for name in whole.flags["run"]["addons"] if name != addon]
    request = attrs.evolve(_with(whole, "run", addons=others), settings=tuple(kept))
    name = whole.flags.get("tracking", {}).get("run_name", "")
    named = {"run_name": f"{name}-without-{addon}"} if name else {}
    return _with(request, "tracking", **named)


def _with(request: Request, section: str, **values: Any) -> Request:
    given = {**request.flags.get(section, {}), **values}
    return attrs.evolve(request, flags={**request.flags, section: given})
