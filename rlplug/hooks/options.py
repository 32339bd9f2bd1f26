"""The options of a run's plugins: by module, with schedules resolved at the current step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from rlplug.config.schedule import resolve, resolve_scheduled
from rlplug.config.sources import check_options
from rlplug.config.strict import structure
from rlplug.config.toml import plain
from rlplug.errors import ConfigError, RequestError, did_you_mean
from rlplug.registry import Participant

__all__ = ["ConfigCache", "noting_reads"]


class ConfigCache(dict[tuple[str, str], Any]):
    """(plugin, module id) → options, with schedules resolved at the current step."""

    def __init__(self, participants: Sequence[Participant]) -> None:
        super().__init__()
        self._configs = {one.name: one.config for one in participants}
        self.overrides: dict[str, dict[str, Any]] = {}
        """Module id → plugin → options."""
        self.step = 0
        self.has_schedules = False

    def __missing__(self, key: tuple[str, str]) -> Any:
        config = self._unresolved(key)
        self[key] = resolved = resolve(config, self.step)
        self.has_schedules = self.has_schedules or resolved is not config
        return resolved

    def scheduled(self, key: tuple[str, str]) -> Any:
        """The same with `ScheduledValue` numbers, which optimizers follow."""
        return resolve_scheduled(self._unresolved(key), self.step)

    def changed(self, plugin: str, module_id: str, options: Mapping[str, Any]) -> Any:
        """The options of a plugin for a module with some of them changed, checked."""
        known = self._configs
        if not isinstance(plugin, str) or plugin not in known:
            raise RequestError(
                f"plugin {plugin!r} takes no part here. "
                f"{did_you_mean(str(plugin), known, sentence=True)}".rstrip(),
                f"there are: {', '.join(known)}",
            )
        who = f"the options of {plugin!r} for module {module_id!r}"
        check_options(options, who)
        base = self._unresolved((plugin, module_id))
        config, problems = structure(type(base), {**plain(base), **options}, "options")
        if problems:
            raise ConfigError(who, problems)
        return config

    def set_overrides(self, module_id: str, configs: Mapping[str, Any]) -> None:
        """Replace all options that were set for one module alone, by plugin."""
        self.overrides[module_id] = dict(configs)
        for plugin in self._configs:
            self.pop((plugin, module_id), None)

    def _unresolved(self, key: tuple[str, str]) -> Any:
        plugin, module_id = key
        return self.overrides.get(module_id, {}).get(plugin, self._configs[plugin])


def noting_reads(config: Any, plugin: str, read: set[tuple[str, str]]) -> Any:
    """The same options, which add the names of those that are read to `read`, with the plugin's."""
    kind: Any = type(config)
    fields = {field.name for field in attrs.fields(kind)}

    class Noting(kind):  # type: ignore[misc] # of a class that is known when it runs
        """Options of a plugin, of which somebody wants to know which ones it reads."""

        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in fields:
                read.add((plugin, name))
            return super().__getattribute__(name)

    made = object.__new__(Noting)
    # The options may note reads themselves: to copy them is no use of them.
    for name in fields:
        object.__setattr__(made, name, object.__getattribute__(config, name))
    return made
