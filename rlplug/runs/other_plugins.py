"""Options in a request that belong to other installed plugins; imports those to look for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs

from rlplug.config.names import core_owners, names
from rlplug.config.sources import read_toml
from rlplug.errors import Problem
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Registry
from rlplug.runs.request import Request

__all__ = ["OtherPlugins"]


@attrs.define(eq=False, slots=False)
class OtherPlugins:
    """The installed plugins besides the algorithm of a run."""

    registry: Registry
    algorithm: FoundPlugin

    def owners(self, option: str) -> list[str]:
        """Who has an option of this name: core sections, algorithms and add-ons."""
        algorithms = [name for name, known in self._algorithms.items() if option in known]
        addons = [f"add-on {name}" for name, known in self._addons.items() if option in known]
        return core_owners(option) + algorithms + addons

    def file_for_another(self, request: Request, config: type[Any]) -> Problem | None:
        """That the file's [algorithm] is for another algorithm, told once for all its options."""
        if request.config is None:
            return None
        file = read_toml(request.config)
        run, options = file.get("run", {}), file.get("algorithm", {})
        if not (isinstance(run, Mapping) and isinstance(options, Mapping)):
            return None
        unknown = set(options) - set(names(config))
        if not unknown:
            return None
        written = run.get("algorithm")
        named = written.rpartition(":")[2] if isinstance(written, str) else ""
        # The file may also have the options of a third one.
        its_own = unknown <= self._algorithms.get(named, unknown)
        if named not in ("", self.algorithm.name) and its_own:
            return self._stranger(request, str(written))
        owners = [name for name, known in self._algorithms.items() if unknown <= known]
        # A single one is told as an option of the other algorithm.
        return self._stranger(request, owners[0]) if owners and len(unknown) > 1 else None

    def _stranger(self, request: Request, other: str) -> Problem:
        return Problem(
            "algorithm",
            f"the options in {request.config} are those of {other!r}, not of "
            f"{self.algorithm.name!r}: use --algo {other}, or remove [algorithm] from the file",
        )

    @cached_property
    def _algorithms(self) -> dict[str, set[str]]:
        others = self.registry.others(ALGORITHM, self.algorithm.name)
        return {found.name: set(names(kind.Config)) for found, kind in others}

    @cached_property
    def _addons(self) -> dict[str, set[str]]:
        others = self.registry.others(ADDON, "")
        return {found.name: set(names(kind.Config)) for found, kind in others}
