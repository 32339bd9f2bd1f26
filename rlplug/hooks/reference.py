"""The hook reference, generated from the specifications as `docs/hooks.md`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import attrs

from rlplug.hooks.events import RunHooks
from rlplug.hooks.specs import LearnerHooks

__all__ = ["Entry", "entries", "markdown"]

_FIELD = re.compile(r"([A-Za-z_][\w, ]*?|Several plugins|None|Returns): (.*)", re.DOTALL)
_FIVE = (
    "build",
    "configure_optimizers_for_module",
    "compute_loss_for_module",
    "postprocess_gradients",
    "additional_update",
)


@attrs.frozen
class Entry:
    """The documentation of one hook."""

    name: str
    signature: str
    arguments: tuple[str, ...]
    summary: str
    fields: tuple[tuple[str, str], ...]
    example: str

    @property
    def called(self) -> str:
        """When and how often it is called."""
        return dict(self.fields).get("Called", "")


def entries(specs: type[Any] | None = None) -> list[Entry]:
    """All hooks, the five main hooks of an algorithm first."""
    if specs is not None:
        return [_entry(name, function) for name, function in _functions(specs)]
    learning = {name: _entry(name, function) for name, function in _functions(LearnerHooks)}
    first = [learning.pop(name) for name in _FIVE]
    return [*first, *learning.values(), *entries(RunHooks)]


def markdown() -> str:
    """The plugin guide, followed by the reference."""
    guide = files("rlplug.hooks").joinpath("guide.md").read_text(encoding="utf-8")
    learning = entries()
    events = {entry.name for entry in entries(RunHooks)}
    parts = [guide.rstrip(), "", "## The five hooks of an algorithm", ""]
    for entry in learning:
        if entry.name == "build_extra":
            parts += ["## The rest of the contract", ""]
        if entry.name == "run_started":
            parts += ["## Events", "", inspect.cleandoc(RunHooks.__doc__ or ""), ""]
        parts += _section(entry, event=entry.name in events)
    return "\n".join(parts).rstrip() + "\n"


def _section(entry: Entry, *, event: bool) -> Iterator[str]:
    yield f"### {entry.name}"
    yield ""
    yield "```python"
    yield entry.signature
    yield "```"
    yield ""
    yield entry.summary
    yield ""
    for name, text in entry.fields:
        label = f"**{name}**" if name[0].isupper() else f"`{name.replace(', ', '`, `')}`"
        yield f"- {label}: {text}"
    yield ""
    yield "```python"
    yield entry.example
    yield "```"
    yield ""


def _functions(specs: type[Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(specs).items() if not name.startswith("_")]


def _entry(name: str, function: Any) -> Entry:
    doc = inspect.cleandoc(function.__doc__)
    prose, _, example = doc.partition("\nExample:\n")
    summary, _, body = prose.partition("\n\n")
    arguments = tuple(inspect.signature(function).parameters)[1:]
    return Entry(
        name,
        _signature(name, function),
        arguments,
        " ".join(summary.split()),
        tuple(_fields(body)),
        inspect.cleandoc(example),
    )


def _fields(body: str) -> Iterator[tuple[str, str]]:
    """Parse `name: text` entries with indented continuation lines."""
    blocks: list[str] = []
    for line in body.splitlines():
        if not line.strip():
            continue
        if line.startswith(" ") or not blocks or not _starts(line):
            blocks[-1:] = [f"{blocks[-1]} {line.strip()}"] if blocks else [line.strip()]
        else:
            blocks.append(line.strip())
    for block in blocks:
        if block.startswith("Returns "):
            yield "Returns", block.removeprefix("Returns ")
            continue
        match = _FIELD.fullmatch(block)
        if match is not None:
            yield match[1], match[2]


def _starts(line: str) -> bool:
    return line.startswith("Returns ") or _FIELD.fullmatch(line) is not None


def _signature(name: str, function: Any) -> str:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    lines = [f"    {parameter.name}: {parameter.annotation}," for parameter in parameters]
    returned = inspect.signature(function).return_annotation
    body = "\n".join(["    self,", *lines])
    return f"def {name}(\n{body}\n) -> {returned}: ..."
