"""The rules by which mutants_core.py plants bugs: each is a small edit of the source text."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from typing import Any

import attrs

RULES = ("operators", "constants", "statements", "arguments", "copies")

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
_PICTURE = frozenset(("axes", "figure", "bar"))
_LOOKS = frozenset(
    (
        *("size", "labelsize", "fontsize", "linewidth", "lw", "markersize", "ms", "alpha"),
        *("zorder", "length", "rotation", "color", "facecolor", "edgecolor", "cmap"),
    )
)
"""Arguments of what draws a picture: their values are judged by eye."""


@attrs.frozen(kw_only=True)
class Bug:
    """An edit of one file."""

    file: str
    rule: str
    line: int
    start: int
    """Where the edit begins, in bytes."""
    stop: int
    becomes: bytes
    text: str
    """The line as it is, without what it is indented by."""
    planted_text: str
    at_import: bool
    """Whether the line runs when its file is imported, and never again."""

    @property
    def room(self) -> str:
        """The folder or file directly below rlplug/."""
        return self.file.split("/")[1].removesuffix(".py")

    def planted(self, source: bytes) -> bytes:
        """The source with the bug."""
        return source[: self.start] + self.becomes + source[self.stop :]

    def diff(self) -> str:
        """The line before and after."""
        return f"{self.file}:{self.line} ({self.rule})\n- {self.text}\n+ {self.planted_text}"


def bugs_in(file: str, source: bytes) -> Iterator[Bug]:
    """All bugs that the rules find in a source, in its order; what does not compile is left out."""
    for bug in edits_of(file, source):
        try:
            compile(bug.planted(source), file, "exec")
        except SyntaxError:
            continue
        yield bug


def edits_of(file: str, source: bytes) -> Iterator[Bug]:
    """What the rules make of a source, whether it compiles or not."""
    finder = _Finder(source)
    tree = ast.parse(source)
    finder.visit(tree)
    bodies = list(finder.bodies(tree))
    for rule, start, stop, becomes in sorted(set(finder.found), key=lambda one: one[1:]):
        line = source.count(b"\n", 0, start) + 1
        planted = source[:start] + becomes + source[stop:]
        begin = source.rfind(b"\n", 0, start) + 1
        text = source[begin:].partition(b"\n")[0].decode().strip()
        # It may touch what must not be tried: a signal to a process that is not its own.
        if "kill" in text:
            continue
        yield Bug(
            file=file,
            rule=rule,
            line=line,
            start=start,
            stop=stop,
            becomes=becomes,
            text=text,
            planted_text=planted[begin:].partition(b"\n")[0].decode().strip(),
            at_import=not any(first <= start < last for first, last in bodies),
        )


class _Finder(ast.NodeVisitor):
    """Collects edits as rule, start, stop and new text."""

    def __init__(self, source: bytes) -> None:
        self.found: list[tuple[str, int, int, bytes]] = []
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
            self.found.append(("operators", place, place + len(old), new.encode()))

    # -- constants -----------------------------------------------------------------------------

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace("constants", node, str(not value))
        elif isinstance(value, int):
            self._replace("constants", node, str(value + 1))
        elif isinstance(value, float):
            self._replace("constants", node, str(value * 2 or 1.0))

    # -- statements, arguments, copies ---------------------------------------------------------

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
                self._replace("copies", node, self._text(of))
        if name == "tree_map" and node.args and self._text(node.args[0]) == "copied":
            self._replace("copies", node, self._text(node.args[1]))
        if name not in _NO_ORDER:
            self._reordered(node.args)
        drawn = isinstance(called, ast.Attribute) and ast.unparse(called.value) in _PICTURE
        for part in ast.iter_child_nodes(node):
            # NumPy takes any negative number for the size that follows from the others.
            if name == "reshape" and isinstance(part, ast.UnaryOp):
                continue
            if not (drawn and (name == "add_axes" or getattr(part, "arg", "") in _LOOKS)):
                self.visit(part)

    def _reordered(self, args: list[ast.expr]) -> None:
        for one, other in itertools.pairwise(args):
            starred = isinstance(one, ast.Starred) or isinstance(other, ast.Starred)
            if starred or self._text(one) == self._text(other):
                continue
            start, stop = self._start(one), self._stop(other)
            between = self._source[self._stop(one) : self._start(other)]
            new = self._text(other).encode() + between + self._text(one).encode()
            self.found.append(("arguments", start, stop, new))

    # -- places --------------------------------------------------------------------------------

    def bodies(self, tree: ast.AST) -> Iterator[tuple[int, int]]:
        """Where the bodies of functions begin and end, in bytes."""
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield self._start(node.body[0]), self._stop(node.body[-1])
            elif isinstance(node, ast.Lambda):
                yield self._start(node.body), self._stop(node.body)

    def _replace(self, rule: str, node: Any, becomes: str) -> None:
        self.found.append((rule, self._start(node), self._stop(node), becomes.encode()))

    def _text(self, node: Any) -> str:
        return self._source[self._start(node) : self._stop(node)].decode()

    def _start(self, node: Any) -> int:
        return int(self._lines[node.lineno - 1] + node.col_offset)

    def _stop(self, node: Any) -> int:
        return int(self._lines[node.end_lineno - 1] + node.end_col_offset)
