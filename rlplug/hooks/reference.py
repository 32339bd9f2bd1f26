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


def entries() -> list[Entry]:
    """All hooks, the five main hooks of an algorithm first."""
    learning = _entries(LearnerHooks)
    return [
        *(learning.pop(name) for name in _FIVE),
        *learning.values(),
        *_entries(RunHooks).values(),
    ]


def markdown() -> str:
    """The plugin guide, followed by the reference."""
    guide = files("rlplug.hooks").joinpath("guide.md").read_text(encoding="utf-8")
    parts = [guide.rstrip(), "", "## The five hooks of an algorithm", ""]
    for entry in entries():
        if entry.name == "build_extra":
            parts += ["## The rest of the contract", ""]
        if entry.name == "run_started":
            parts += ["## Events", "", inspect.cleandoc(RunHooks.__doc__ or ""), ""]
        parts += [f"### {entry.name}", "", "```python", entry.signature, "```", ""]
        parts += [entry.summary, ""]
        for name, text in entry.fields:
            label = f"**{name}**" if name[0].isupper() else f"`{name.replace(', ', '`, `')}`"
            parts.append(f"- {label}: {text}")
        parts += ["", "```python", entry.example, "```", ""]
    return "\n".join(parts).rstrip() + "\n"


def _entries(specs: type[Any]) -> dict[str, Entry]:
    return {
        name: _entry(name, function)
        for name, function in vars(specs).items()
        if not name.startswith("_")
    }


def _entry(name: str, function: Any) -> Entry:
    prose, _, example = inspect.cleandoc(function.__doc__).partition("\nExample:\n")
    summary, _, body = prose.partition("\n\n")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    lines = [f"    {parameter.name}: {parameter.annotation}," for parameter in parameters]
    taken = "\n".join(["    self,", *lines])
    return Entry(
        name,
        f"def {name}(\n{taken}\n) -> {signature.return_annotation}: ...",
        tuple(parameter.name for parameter in parameters),
        " ".join(summary.split()),
        tuple(_fields(body)),
        inspect.cleandoc(example),
    )


def _fields(body: str) -> Iterator[tuple[str, str]]:
    """What is said of `name: text`, or of `Returns text`; indented lines belong to those above."""
    for block in re.split(r"\n(?=\S)", body):
        name, _, text = (
            ("Returns", "", block[len("Returns ") :])
            if block.startswith("Returns ")
            else block.partition(": ")
        )
        if text:
            yield name, " ".join(text.split())
