"""The rules by which mutants.py plants bugs in plugins."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from mutants_core_rules import bugs_in

__all__ = ["RULES", "planted_by_rules"]

RULES = ("signs", "operators", "constants", "statements", "arguments", "detach", "options")
"""`signs`: + and −; `operators`: others; `constants`: off by one, twice as much; `statements`: left
out; `arguments`: swapped; `detach`: dropped, as clone and copy; `options`: the default instead."""

_NOT_LEARNING = frozenset(
    ("supports", "unsupported", "forward_export", "__repr__", "describe", "unsupported_reason")
)
"""Functions that neither act nor learn."""
_SIGNS = ("+", "-")

Planted = tuple[str, int, str, str, str]
"""Rule, line, that line before and after, and the whole source with the bug."""


def planted_by_rules(source: str, rules: Sequence[str]) -> Iterator[Planted]:
    """Each bug that the rules find in a source."""
    lines = source.splitlines()
    skipped = set(_lines_apart(source))
    for bug in bugs_in("plugins/x.py", source.encode()):
        rule = bug.rule
        old = source.encode()[bug.start : bug.stop].decode()
        if rule == "copies":
            rule = "detach"
        elif rule == "operators" and (old in _SIGNS or old.startswith("-")):
            rule = "signs"
        if rule in rules and bug.line not in skipped:
            yield rule, bug.line, bug.text, bug.planted_text, bug.planted(source.encode()).decode()
    if "options" in rules:
        for found in re.finditer(r"\b(?:self\.)?config\.(\w+)", source):
            line = source.count("\n", 0, found.start()) + 1
            if line in skipped:
                continue
            holder = found.group().removesuffix(f".{found.group(1)}")
            planted = (
                source[: found.start()]
                + f"type({holder})().{found.group(1)}"
                + source[found.end() :]
            )
            yield (
                "options",
                line,
                lines[line - 1].strip(),
                planted.splitlines()[line - 1].strip(),
                planted,
            )


def _lines_apart(source: str) -> Iterator[int]:
    """Lines of imports, of messages, of class declarations and of what neither acts nor learns."""
    for node in ast.walk(ast.parse(source)):
        apart = isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.Assert)
        if isinstance(node, ast.FunctionDef):
            apart = node.name in _NOT_LEARNING
        if isinstance(node, ast.AnnAssign):
            # Declarations: defaults, presets, variants, and mappings of options that they share.
            said = ast.unparse(node.annotation)
            apart = "ClassVar" in said or said == "Mapping[str, Any]"
        if apart and isinstance(node, ast.stmt):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
