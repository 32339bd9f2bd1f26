"""The options that hold at the current step, per plugin and module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlplug.config.followed import follow
from rlplug.config.schedule import resolve

__all__ = ["OptionsInForce"]


class OptionsInForce:
    """Resolves schedules once per step, and not at all where there are none."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._given = dict(options)
        self._overrides: dict[tuple[str, str], Any] = {}
        self._resolved: dict[tuple[str, str], Any] = {}
        self._step = 0
        self._scheduled = False

    def of(self, plugin: str, module_id: str) -> Any:
        """A plugin's options for a module, every schedule a number."""
        key = (plugin, module_id)
        if key in self._resolved:
            return self._resolved[key]
        given = self._overrides.get(key, self._given[plugin])
        options = given if given is None else resolve(given, self._step)
        self._resolved[key] = options
        self._scheduled = self._scheduled or options is not given
        return options

    def followed(self, plugin: str, module_id: str) -> Any:
        """The same with numbers that remember their schedules, for optimizers to follow."""
        return follow(self._overrides.get((plugin, module_id), self._given[plugin]), self._step)

    def override(self, plugin: str, module_id: str, config: Any) -> None:
        """Give a plugin other options for one module."""
        self._overrides[plugin, module_id] = config
        self._resolved.pop((plugin, module_id), None)

    def at_step(self, step: int) -> None:
        """Move schedules to an environment step."""
        self._step = step
        if self._scheduled:
            self._resolved.clear()
