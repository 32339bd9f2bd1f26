"""The rules of benchmarks/mutants_core.py: which bugs they plant into a line."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def rules() -> Any:
    spec = importlib.util.spec_from_file_location("rules", BENCHMARKS / "mutants_core_rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "planted"),
    [
        ("x = a < b", {"operators": ["x = a <= b"]}),
        ("x = a + b * c", {"operators": ["x = a - b * c", "x = a + b / c"]}),
        ("x = not a and b", {"operators": ["x = a and b", "x = not a or b"]}),
        ("x = y if a else z", {"operators": ["x = y if not (a) else z"]}),
        ("x = 3", {"constants": ["x = 4"]}),
        ("x = [True, 0.5]", {"constants": ["x = [False, 0.5]", "x = [True, 1.0]"]}),
        ("self.x = y", {"statements": ["pass"]}),
        ("x += y", {"operators": ["x -= y"], "statements": ["pass"]}),
        ("raise ValueError(1 + 2)", {"statements": ["pass"]}),
        ("f(a)", {"statements": ["pass"]}),
        ("x = f(a, b)", {"arguments": ["x = f(b, a)"]}),
        ("x = f(a, a)", {}),
        ("x = y.copy()", {"copies": ["x = y"]}),
        ("x = copied(y)", {"copies": ["x = y"]}),
        ("x: int = 3", {"constants": ["x: int = 4"]}),
        ("x = zip(a, a, strict=True)", {}),
        ('x = f"{a + b}" "text"', {}),
        ("x = 1  # never kill", {}),
        ("x = min(a, b)", {}),
        ("x = numpy.maximum(a, 2)", {"constants": ["x = numpy.maximum(a, 3)"]}),
        ("y = axes.plot(a, size=3)", {}),
        ("y = axes.plot(a, base=3)", {"constants": ["y = axes.plot(a, base=4)"]}),
        ("y = figure.add_axes((1, 2))", {}),
        ("y = axes.plot(x, color=c[0], size=3)", {}),
        ("y = x.reshape(n, -1)", {"arguments": ["y = x.reshape(-1, n)"]}),
        ("y = rows.plot(size=3)", {"constants": ["y = rows.plot(size=4)"]}),
    ],
)
def test_a_line_becomes_what_its_rules_make_of_it(line: str, planted: dict[str, Any]) -> None:
    found: dict[str, list[str]] = {}
    for bug in rules().bugs_in("rlplug/room/file.py", f'"""é."""\n{line}\n'.encode()):
        assert (bug.room, bug.line, bug.text) == ("room", 2, line)
        found.setdefault(bug.rule, []).append(bug.planted_text)
    assert {rule: sorted(lines) for rule, lines in found.items()} == {
        rule: sorted(lines) for rule, lines in planted.items()
    }


def test_a_line_outside_of_functions_runs_when_its_file_is_imported() -> None:
    source = b"""x = 1
def f(a=2, *, b=lambda: 3):
    return 4
class C:
    y: int = 5
    def g(self):
        def h(): return 6
        return h
"""
    found = {
        bug.planted_text.strip("):"): bug.at_import for bug in rules().bugs_in("r/f.py", source)
    }
    assert found == {
        "x = 2": True,
        "def f(a=3, *, b=lambda: 3": True,
        "def f(a=2, *, b=lambda: 4": False,
        "return 5": False,
        "y: int = 6": True,
        "def h(): return 7": False,
    }


def test_every_accepted_bug_can_be_planted() -> None:
    listed = tomllib.loads((BENCHMARKS / "mutants_core.toml").read_text(encoding="utf-8"))
    planted = {
        file: {
            (bug.rule, bug.text, bug.planted_text)
            for bug in rules().edits_of(file, (BENCHMARKS.parent / file).read_bytes())
        }
        for file in {one["file"] for one in listed["accepted"]}
    }
    for one in listed["accepted"]:
        assert (one["rule"], one["line"], one["becomes"]) in planted[one["file"]], one["line"]
