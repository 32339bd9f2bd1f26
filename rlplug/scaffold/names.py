"""The names of a new plugin, its distribution, package and class, and why they cannot be used."""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Collection, Iterator
from importlib import metadata

import attrs

from rlplug.errors import RequestError
from rlplug.registry import ADDON, Kind, Registry

__all__ = ["Names"]

_PREFIX = "rlplug-"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")
_LONGEST = 50


@attrs.frozen
class Names:
    """What the new plugin, its distribution, its package and its class are called."""

    plugin: str
    class_name: str

    @classmethod
    def of(cls, name: str, kind: Kind, words: Collection[str] = ()) -> Names:
        """Names for `reinforce` or `rlplug-reinforce`; `words` are not used for the class."""
        plugin = name.removeprefix(_PREFIX)
        if not _NAME.match(plugin) or len(plugin) > _LONGEST:
            raise RequestError(
                f"{name!r} cannot be the name of a plugin: a name is a lower case letter, then "
                f"lower case letters, digits and single dashes, at most {_LONGEST} in all.",
                f"try: rlplug plugins new {_suggested(plugin)}",
            )
        class_name = "".join(part.capitalize() for part in plugin.split("-"))
        if class_name in words or keyword.iskeyword(class_name):
            class_name += "AddOn" if kind == ADDON else "Algorithm"
        return cls(plugin, class_name)

    @property
    def distribution(self) -> str:
        """What pip calls it."""
        return _PREFIX + self.plugin

    @property
    def package(self) -> str:
        """What Python imports."""
        return self.distribution.replace("-", "_")

    def check_not_taken(self, registry: Registry) -> None:
        """Refuse names of what is installed, all reasons at once."""
        reasons = list(self._taken(registry))
        if reasons:
            raise RequestError(
                f"the name {self.plugin!r} is taken:",
                *reasons,
                "try: another name     (see: rlplug plugins list)",
            )

    def _taken(self, registry: Registry) -> Iterator[str]:
        installed = [one for one in registry.found if one.name == self.plugin]
        for one in installed:
            yield f"{one.label} is installed"
        if not installed:
            try:
                version = metadata.version(self.distribution)
            except metadata.PackageNotFoundError:
                if importlib.util.find_spec(self.package) is not None:
                    yield f"there is a Python package {self.package!r}"
            else:
                yield f"the distribution {self.distribution} {version} is installed"


def _suggested(name: str) -> str:
    """The nearest valid name."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    plain = re.sub(r"[^a-z0-9]+", "-", spaced).lstrip("0123456789-")[:_LONGEST].strip("-")
    return plain or "my-algorithm"
