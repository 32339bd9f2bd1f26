"""Write the pages of docs/ that are made from the code: `python .ci/docs_pages.py`.

A test compares them with what is there.
"""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

import rlplug.nn
from rlplug import Loss
from rlplug.config.options_table import markdown, sections
from rlplug.feeds import Logged, Replay, Rollout, Stream

ROOT = Path(__file__).parent.parent
MADE = "<!-- Made by .ci/docs_pages.py; a test compares them. -->"


def pages() -> dict[str, str]:
    """The pages by their names."""
    return {"options.md": options(), "reference.md": reference(), "house.md": house()}


def options() -> str:
    """The options of every run, one table per section."""
    parts = ["# Options of every run", "", MADE, ""]
    parts += ["`--set section.name=value`, or a TOML file with these sections. Those of a plugin:"]
    parts += ["`rlplug plugins show NAME`.", ""]
    for name, section in sections().items():
        parts += [f"## [{name}]", "", inspect.cleandoc(section.__doc__ or ""), ""]
        parts += [markdown(section).rstrip(), ""]
    return "\n".join(parts).rstrip() + "\n"


def reference() -> str:
    """The constructors of feeds, the fields of `Loss`, the parts of `rlplug.nn`."""
    parts = ["# Feeds, losses and networks", "", MADE, ""]
    parts += ["What `feed()` returns, what `compute_loss_for_module` returns, and what modules"]
    parts += ["are made of. [Notes for authors](authors-notes.md) say how they fit together.", ""]
    for kind in (Stream, Rollout, Replay, Logged, Loss):
        parts += [f"## {kind.__name__}", "", inspect.cleandoc(kind.__doc__ or ""), ""]
        parts += ["| field | default | |", "|---|---|---|"]
        parts += [f"| `{name}` | {default} | {text} |" for name, default, text in fields(kind)]
        parts.append("")
    parts += ["## rlplug.nn", "", "| part | what it is |", "|---|---|"]
    for name in rlplug.nn.__all__:
        text = (getattr(rlplug.nn, name).__doc__ or "").strip().partition("\n\n")[0]
        if isinstance(getattr(rlplug.nn, name), dict):
            text = "Gains of orthogonal initialization by activation function."
        parts.append(f"| `{name}` | {' '.join(text.split())} |")
    return "\n".join(parts).rstrip() + "\n"


def fields(kind: type[Any]) -> Iterator[tuple[str, str, str]]:
    """The fields of a class with their defaults and the texts below them."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    name = ""
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            # What all of a kind share is no argument.
            shared = ast.unparse(node.annotation).startswith("ClassVar")
            name = "" if shared else node.target.id
            if name:
                texts[name] = ""
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            texts[name] = " ".join(str(node.value.value).split())
    defaults = {}
    if attrs.has(kind):
        defaults = {one.name: one.default for one in attrs.fields(kind)}
    for one, text in texts.items():
        default = defaults.get(one, attrs.NOTHING)
        yield one, "" if default is attrs.NOTHING else f"`{default!r}`", text


def house() -> str:
    """The folders of the core in the order of their imports, with what is in them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contract = tomllib.load(file)["tool"]["importlinter"]["contracts"][0]
    layers = [layer.strip("()") for layer in contract["layers"]]
    parts = ["# The house", "", MADE, ""]
    parts += ["Imports run downwards only: a file may import what is below it. `lint-imports`"]
    parts += ["checks it, and a test that no two files import each other.", "", "```text"]
    width = max(map(len, layers))
    for layer in layers:
        path = ROOT / "rlplug" / layer
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if source.exists():
            doc = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
            parts.append(f"{layer:<{width}}  {' '.join(doc.partition(chr(10) * 2)[0].split())}")
    parts += ["```", "", "Plugins stand on top of it, each a distribution of its own under"]
    parts += ["`plugins/`. The core never names one."]
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    """Write them."""
    for name, text in pages().items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
