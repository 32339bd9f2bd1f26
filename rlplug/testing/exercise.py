"""Try a plugin with many options, and see which of them are read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import attrs

from rlplug.config.strict import structure
from rlplug.config.toml import plain
from rlplug.errors import RlplugError
from rlplug.testing.bench import bench_of
from rlplug.testing.cases import Case
from rlplug.testing.subject import Subject

__all__ = ["exercise", "recording", "variants_of"]

Values = Mapping[str, Any]


def variants_of(subject: Subject) -> Iterator[dict[str, Any]]:
    """Options to try: as they are, the author's variants, each switch and choice turned.

    Switches that exclude each other are turned in pairs.
    """
    yield {}
    for variant in subject.variants:
        yield dict(variant)
    kind = subject.kind.Config
    types = get_type_hints(kind)
    config = subject.config()
    values = {field.name: getattr(config, field.name) for field in attrs.fields(kind)}
    switches = {name: not value for name, value in values.items() if isinstance(value, bool)}
    for name, value in values.items():
        for other in _others(value, types[name]):
            yield {name: other}
            if _config(subject, {name: other}) is None:
                yield from ({name: other, switch: turned} for switch, turned in switches.items())


def exercise(subject: Subject, changes: Values, cases: Sequence[Case]) -> set[str]:
    """The options that were read in short lives with these; none if they are refused."""
    reads: set[str] = set()
    config = _config(subject, changes, recording(subject.kind.Config, reads))
    if config is None:
        return set()
    plugin = subject.kind(config)
    if not subject.is_addon:
        plugin.feed()
    for case in cases:
        if not subject.is_addon and plugin.supports(case.observation_space, case.action_space):
            continue
        try:
            bench = bench_of(subject, case, config=config)
            bench.live(3)
            bench.calls.inference_module(
                next(iter(bench.learner.modules)), bench.module, bench.learner
            )
            next(iter(bench.players.values())).batch(1, greedy=True)
        except RlplugError:
            continue
        if len(reads) == len(attrs.fields(subject.kind.Config)):
            break
    return reads


def recording(kind: type[Any], reads: set[str]) -> type[Any]:
    """The same class of options, whose instances note which of them plugins read."""
    names = {field.name for field in attrs.fields(kind)}

    def read(self: Any, name: str) -> Any:
        if name in names and not _is_bookkeeping(sys._getframe(1)):
            reads.add(name)
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": read, "__doc__": kind.__doc__})


def _config(subject: Subject, changes: Values, kind: type[Any] | None = None) -> Any:
    """The options with these changed; None if they are refused."""
    values = plain({**attrs.asdict(subject.config(), recurse=False), **changes})
    config, _ = structure(kind or subject.kind.Config, values, "")
    return config


def _is_bookkeeping(frame: FrameType | None) -> bool:
    """Whether options are only compared, copied, checked or resolved there, not used."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name in ("__attrs_post_init__", "__init__", "__eq__", "__repr__"):
            own = frame.f_locals.get("self")
            if attrs.has(type(own)):
                return True
        if not module.startswith(("attr.", "attrs.", "attr", "copy")):
            return module.startswith("rlplug.config.")
        frame = frame.f_back
    return True


def _others(value: Any, declared: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if get_origin(declared) is Literal:
        return [choice for choice in get_args(declared) if choice != value]
    if isinstance(value, float):
        return [value * 0.5 if value else 0.1]
    if isinstance(value, int):
        return [value + 1]
    return []
