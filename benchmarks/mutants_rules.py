"""The rules by which mutants.py plants bugs in plugins: each is a small edit of the source text."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

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


_SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
"""Operator → how it is written, and what stands there instead."""

_COPIES = frozenset(("copy", "clone", "deepcopy", "copied", "detach"))
_NO_ORDER = frozenset(
    (
        *("isinstance", "issubclass", "hasattr", "getattr", "setattr", "cast"),
        *("min", "max", "minimum", "maximum", "suppress"),
    )
)
"""Calls whose swapped arguments raise at once, or mean the same."""


def planted_by_rules(source: str, rules: Sequence[str]) -> Iterator[Planted]:
    """Each bug that the rules find in a source."""
    lines = source.splitlines()
    skipped = set(_lines_apart(source))
    encoded = source.encode()
    for rule, start, stop, text in _edits_of(encoded):
        old = encoded[start:stop].decode()
        if rule == "operators" and (old in _SIGNS or old.startswith("-")):
            rule = "signs"
        line = encoded.count(b"\n", 0, start) + 1
        before = _line_at(encoded, start)
        # It may touch what must not be tried: a signal to a process that is not its own.
        if rule in rules and line not in skipped and "kill" not in before:
            changed = encoded[:start] + text + encoded[stop:]
            yield rule, line, before, _line_at(changed, start), changed.decode()
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


Edit = tuple[str, int, int, bytes]
"""Rule, where it begins and ends in bytes, and what stands there instead."""


def _edits_of(source: bytes) -> Iterator[Edit]:
    """The edits that compile, in the order of the source."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    for rule, start, stop, text in sorted(set(finder.edits), key=lambda edit: edit[1:]):
        try:
            compile(source[:start] + text + source[stop:], "plugin", "exec")
        except SyntaxError:
            continue
        yield rule, start, stop, text


def _line_at(source: bytes, place: int) -> str:
    """The line around a place, without what it is indented by."""
    begin = source.rfind(b"\n", 0, place) + 1
    return source[begin:].partition(b"\n")[0].decode().strip()


class _Finder(ast.NodeVisitor):
    """Collects edits as rule, start, stop and new text."""

    def __init__(self, source: bytes) -> None:
        self.edits: list[Edit] = []
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    # -- what is not code ----------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]:
            self.visit(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and "TypeAlias" not in ast.unparse(node.annotation):
            self._dropped(node, [node.target])
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self._negated(node.test)
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        # Messages are not touched.
        self._replace("statements", node, "pass")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts stay as they are."""

    # -- operators -----------------------------------------------------------------------------

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            self._swapped(op, left, right)
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._swapped(node.op, node.left, node.right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in itertools.pairwise(node.values):
            self._swapped(node.op, left, right)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self._replace("operators", node, self._text(node.operand))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._swapped(node.op, node.target, node.value)
        self._replace("statements", node, "pass")
        self.generic_visit(node)

    def _negated(self, test: ast.expr) -> None:
        # Comparisons and the others have operators of their own.
        if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            self._replace("operators", test, f"not ({self._text(test)})")

    def _swapped(self, op: ast.AST, left: ast.expr, right: ast.expr) -> None:
        if type(op) not in _SWAPS:
            return
        old, new = _SWAPS[type(op)]
        start, stop = self._stop(left), self._start(right)
        found = re.search(re.escape(old.encode()), self._source[start:stop])
        if found is not None:
            place = start + found.start()
            self.edits.append(("operators", place, place + len(old), new.encode()))

    # -- constants -----------------------------------------------------------------------------

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace("constants", node, str(not value))
        elif isinstance(value, int):
            self._replace("constants", node, str(value + 1))
        elif isinstance(value, float):
            self._replace("constants", node, str(value * 2 or 1.0))

    # -- statements, arguments, detach ---------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._replace("statements", node, "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [one.id for one in node.targets if isinstance(one, ast.Name)]
        if "__all__" not in names:
            self._dropped(node, node.targets)
            self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace("statements", node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace("statements", node, "pass")

    def _dropped(self, node: ast.stmt, targets: list[ast.expr]) -> None:
        # Without a first value of its own, a name fails at once.
        if all(isinstance(one, ast.Attribute | ast.Subscript) for one in targets):
            self._replace("statements", node, "pass")

    def visit_keyword(self, node: ast.keyword) -> None:
        # `strict=True` of zip is there for mistakes that nobody has made yet.
        if node.arg != "strict":
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in _COPIES:
            of = node.args[0] if node.args else getattr(called, "value", None)
            if of is not None:
                self._replace("detach", node, self._text(of))
        if name == "tree_map" and node.args and self._text(node.args[0]) == "copied":
            self._replace("detach", node, self._text(node.args[1]))
        if name not in _NO_ORDER:
            self._reordered(node.args)
        for part in ast.iter_child_nodes(node):
            # NumPy takes any negative number for the size that follows from the others.
            if name != "reshape" or not isinstance(part, ast.UnaryOp):
                self.visit(part)

    def _reordered(self, args: list[ast.expr]) -> None:
        for one, other in itertools.pairwise(args):
            starred = isinstance(one, ast.Starred) or isinstance(other, ast.Starred)
            if starred or self._text(one) == self._text(other):
                continue
            start, stop = self._start(one), self._stop(other)
            between = self._source[self._stop(one) : self._start(other)]
            new = self._text(other).encode() + between + self._text(one).encode()
            self.edits.append(("arguments", start, stop, new))

    # -- places --------------------------------------------------------------------------------

    def _replace(self, rule: str, node: Any, becomes: str) -> None:
        self.edits.append((rule, self._start(node), self._stop(node), becomes.encode()))

    def _text(self, node: Any) -> str:
        return self._source[self._start(node) : self._stop(node)].decode()

    def _start(self, node: Any) -> int:
        return int(self._lines[node.lineno - 1] + node.col_offset)

    def _stop(self, node: Any) -> int:
        return int(self._lines[node.end_lineno - 1] + node.end_col_offset)
