"""Find installed plugins by their entry points, and import those that a run names."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Literal

import attrs

from rlplug.errors import FAILURES, PluginError, RlplugError, did_you_mean

Kind = Literal["algorithm", "addon"]
ALGORITHM: Kind = "algorithm"
ADDON: Kind = "addon"

NOT_INSTALLED = "not installed"
"""The package of a class that was passed to a function."""

_GROUPS: dict[str, Kind] = {"rlplug.algorithms": ALGORITHM, "rlplug.addons": ADDON}
_WORDS = {ALGORITHM: "algorithm", ADDON: "add-on"}
_NAME = re.compile(r"[a-z][a-z0-9-]*\Z")
_REQUIREMENT = re.compile(r"\s*rlplug(?![\w.-])", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class FoundPlugin:
    """A plugin as its distribution's metadata describes it, not imported yet."""

    kind: Kind
    name: str
    target: str
    distribution: str
    version: str
    summary: str = ""
    requires: tuple[str, ...] = ()
    loaded: type[Any] | None = attrs.field(default=None, repr=False)

    @property
    def label(self) -> str:
        """`algorithm 'dqn' (rlplug-dqn 0.1.0)`, for messages."""
        return f"{_WORDS[self.kind]} {self.name!r} ({self.package})"

    @property
    def package(self) -> str:
        """`rlplug-dqn 0.1.0`."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def bears_name_of_package(self) -> bool:
        """Whether it is its package's main plugin, as `ppo` is of `rlplug-ppo`."""
        return _normalise(self.distribution).removeprefix("rlplug-") == self.name

    @contextlib.contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Raise errors of the plugin's own code as a `PluginError` that names it."""
        try:
            yield
        except RlplugError:
            raise
        except FAILURES as error:
            raise PluginError(
                f"{self.label} failed in {method!r}:",
                f"{type(error).__name__}: {error}",
                f"try: fix it in {self.target!r}     (--debug shows the traceback)",
            ) from error

    def incompatibility(self, core: str | None = None) -> str | None:
        """Why it is incompatible with the running core: `needs rlplug<0.3, this is 0.3.2`."""
        wanted = [line for line in self.requires if _REQUIREMENT.match(line)]
        if not wanted:
            return None
        from packaging.requirements import InvalidRequirement, Requirement

        running = core_version() if core is None else core
        for line in wanted:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                return f"needs {line!r}, which is not a valid requirement, this is {running}"
            applies = requirement.marker is None or requirement.marker.evaluate()
            if applies and not requirement.specifier.contains(running, prereleases=True):
                return f"needs rlplug{requirement.specifier}, this is {running}"
        return None


@attrs.frozen(eq=False)
class Participant:
    """A plugin that takes part in a run, with its own options."""

    found: FoundPlugin
    plugin: Any
    config: Any = None

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def label(self) -> str:
        return self.found.label


def packages(participants: Iterable[Participant]) -> dict[str, str]:
    """The plugins of a run: name → distribution and version."""
    return {one.name: one.found.package for one in participants}


@attrs.frozen
class Registry:
    """The installed plugins, from one scan of package metadata; nothing is imported."""

    found: tuple[FoundPlugin, ...]

    @classmethod
    def installed(cls) -> Registry:
        """The entry points of all installed distributions, scanned again if folders changed."""
        return cls(_scanned(tuple((path, _changed(path)) for path in sys.path)))

    @classmethod
    def of(cls, **classes: type[Any]) -> Registry:
        """A registry of given classes, for notebooks and tests: `Registry.of(mine=Mine)`."""
        return cls(
            tuple(describe(name.replace("_", "-"), plugin) for name, plugin in classes.items())
        )

    def of_kind(self, kind: Kind) -> tuple[FoundPlugin, ...]:
        """All algorithms, or all add-ons."""
        return tuple(plugin for plugin in self.found if plugin.kind == kind)

    def grouped(self, kind: Kind) -> dict[str, list[FoundPlugin]]:
        """By name; a name that several packages provide has several entries."""
        groups: dict[str, list[FoundPlugin]] = defaultdict(list)
        for plugin in self.of_kind(kind):
            groups[plugin.name].append(plugin)
        return dict(groups)

    def find(self, kind: Kind, name: str) -> FoundPlugin:
        """The plugin of this name; `package:name` selects one of several packages."""
        package, _, short = name.rpartition(":")
        groups = self.grouped(kind)
        candidates = [
            plugin
            for plugin in groups.get(short, [])
            if not package or _normalise(plugin.distribution) == _normalise(package)
        ]
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise _clash(candidates)
        raise self._unknown(kind, name, groups)

    def named(self, name: str) -> FoundPlugin:
        """The algorithm of this name, or else the add-on."""
        short = name.rpartition(":")[2]
        is_addon = short in self.grouped(ADDON) and short not in self.grouped(ALGORITHM)
        return self.find(ADDON if is_addon else ALGORITHM, name)

    @contextlib.contextmanager
    def made_with(self, packages: Mapping[str, str]) -> Iterator[None]:
        """Name the missing packages of what was made with these: plugin → `rlplug-dqn 0.1.0`."""
        try:
            yield
        except PluginError as error:
            known = {plugin.name for plugin in self.found}
            missing = {package for name, package in packages.items() if name not in known}
            # Classes that were passed as objects have no package.
            for name, _, version in sorted(package.partition(" ") for package in missing):
                if is_name(name) and version[:1].isdigit():
                    error.add_hint(
                        f"it was made with {name} {version}: pip install {name}=={version}"
                    )
            raise

    def load(self, plugin: FoundPlugin) -> type[Any]:
        """The plugin's class, imported only if it is compatible with the running core."""
        reason = plugin.incompatibility()
        if reason is not None:
            raise PluginError(
                f"{plugin.label} is incompatible with this rlplug:",
                f"it {reason}.".replace(", this is ", ", this is rlplug "),
                f"try: pip install --upgrade {plugin.distribution}",
            )
        loaded = plugin.loaded if plugin.loaded is not None else _import(plugin)
        base = _base(plugin.kind)
        if not (isinstance(loaded, type) and issubclass(loaded, base)):
            raise PluginError(
                f"{plugin.label}: {plugin.target!r} is not a subclass of rlplug.{base.__name__}.",
                f"try: class {plugin.target.rpartition(':')[2] or 'Mine'}(rlplug.{base.__name__})",
            )
        from rlplug.config.option import config_class_error

        problem = config_class_error(getattr(loaded, "Config", None))
        if problem is not None:
            raise PluginError(
                f"{plugin.label}: {loaded.__name__}.Config {problem}.",
                "see: rlplug plugins hooks --markdown, section Options",
            )
        return loaded

    def others(self, kind: Kind, name: str) -> Iterator[tuple[FoundPlugin, type[Any]]]:
        """All other plugins of a kind that can be imported, by name; for suggestions."""
        for other, (found, *twins) in sorted(self.grouped(kind).items()):
            if other == name or twins:
                continue
            try:
                # Nobody asked for what it prints.
                with contextlib.redirect_stderr(io.StringIO()):
                    loaded = self.load(found)
            except RlplugError:
                continue  # it cannot be suggested if it cannot be loaded
            yield found, loaded

    def _unknown(self, kind: Kind, name: str, groups: dict[str, list[FoundPlugin]]) -> PluginError:
        word = _WORDS[kind]
        if not groups and kind == ALGORITHM:
            return PluginError("no algorithm is installed.", "try: pip install rlplug-linucb")
        other: Kind = ADDON if kind == ALGORITHM else ALGORITHM
        if name in self.grouped(other):
            flag = "--with" if other == ADDON else "--algo"
            return PluginError(
                f"{name!r} is an {_WORDS[other]}, not an {word}.", f"try: {flag} {name}"
            )
        guess = did_you_mean(name, groups, sentence=True)
        installed = ", ".join(sorted(groups)) or "none"
        return PluginError(
            f"unknown {word} {name!r}. {guess}".rstrip(),
            f"installed: {installed}",
            "see: rlplug plugins list",
        )


def describe(name: str, plugin: type[Any], kind: Kind | None = None) -> FoundPlugin:
    """Describe a class that is not installed."""
    if kind is None:
        kind = ADDON if issubclass(plugin, _base(ADDON)) else ALGORITHM
    return FoundPlugin(
        kind=kind,
        name=name,
        target=f"{plugin.__module__}:{plugin.__qualname__}",
        distribution=NOT_INSTALLED,
        version="",
        summary=(plugin.__doc__ or "").strip().partition("\n")[0],
        loaded=plugin,
    )


def core_version() -> str:
    """The version of the running core."""
    try:
        return metadata.version("rlplug")
    except metadata.PackageNotFoundError:
        raise PluginError(
            "rlplug is imported from a folder but not installed.",
            "try: pip install -e .     (in the folder with pyproject.toml)",
        ) from None


def is_name(name: str) -> bool:
    """Whether this is a valid plugin name."""
    return _NAME.match(name) is not None


@functools.lru_cache(maxsize=1)
def _scanned(path: tuple[tuple[str, int], ...]) -> tuple[FoundPlugin, ...]:
    """The plugins on `sys.path`; `path`, its folders and when they changed, tells scans apart."""
    found: dict[tuple[str, str, str, str], FoundPlugin] = {}
    points = metadata.entry_points()
    for group, kind in _GROUPS.items():
        for point in points.select(group=group):
            plugin = _read(kind, point)
            # An editable install can appear twice, as egg-info and as dist-info.
            key = (kind, plugin.name, plugin.target, _normalise(plugin.distribution))
            found.setdefault(key, plugin)
    return tuple(sorted(found.values(), key=lambda p: (p.kind, p.name, p.distribution)))


def _changed(folder: str) -> int:
    """When distributions were last added to a folder of the path or removed."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def _read(kind: Kind, point: metadata.EntryPoint) -> FoundPlugin:
    # Reading metadata is slow: only done for distributions with plugins.
    fields: Any = {}
    requires: Sequence[str] | None = None
    if point.dist is not None:
        # The importlib_metadata backport, which mlflow imports, raises for missing metadata.
        with contextlib.suppress(FileNotFoundError):
            fields, requires = point.dist.metadata, point.dist.requires
    return FoundPlugin(
        kind=kind,
        name=point.name,
        target=point.value,
        # Missing in broken installations.
        distribution=fields.get("Name") or "unknown",
        version=fields.get("Version") or "",
        summary=fields.get("Summary") or "",
        requires=tuple(requires or ()),
    )


def _import(plugin: FoundPlugin) -> Any:
    point = metadata.EntryPoint(plugin.name, plugin.target, "rlplug")
    try:
        # What a plugin prints on import must not end up in piped output.
        with contextlib.redirect_stdout(sys.stderr):
            return point.load()
    except FAILURES as error:
        raise PluginError(
            f"{plugin.label} could not be imported from {plugin.target!r}:",
            f"{type(error).__name__}: {error}",
            f"{_remedy(error, plugin)}     (--debug shows the traceback)",
        ) from error


def _remedy(error: BaseException, plugin: FoundPlugin) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        if top != plugin.target.partition(":")[0].partition(".")[0]:
            return f"try: pip install {top}"
    return f"try: pip install --force-reinstall --no-deps {plugin.distribution}"


def _clash(candidates: Sequence[FoundPlugin]) -> PluginError:
    last = candidates[-1]
    flag = "--algo" if last.kind == ALGORITHM else "--with"
    return PluginError(
        f"{_WORDS[last.kind]} {last.name!r} is provided by {len(candidates)} packages:",
        *(f"{plugin.package}  ({plugin.target})" for plugin in candidates),
        f"choose one, for example {flag} {last.distribution}:{last.name}, or uninstall the other",
    )


def _base(kind: Kind) -> type[Any]:
    from rlplug import plugin

    return plugin.Algorithm if kind == ALGORITHM else plugin.AddOn


def _normalise(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
