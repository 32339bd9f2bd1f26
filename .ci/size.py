"""Code lines and tokens per line of each room, beside the budgets in pyproject.toml.

usage: python .ci/size.py [CHECKOUT]     exit code 1 if a room is over its budget

A code line is a physical line with a token that is neither comment nor docstring. Tokens per line
show where lines were only made denser.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def measure(source: str) -> tuple[int, int]:
    """Code lines and tokens of a file."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        # A string that is a statement: docstrings, and those below attributes.
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT and token.start[0] not in documented:
            tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines), tokens


def rooms(path: Path) -> Iterator[str]:
    """The rooms that a file counts for, sums included."""
    parts = path.parts
    if "tests" in parts:
        yield "plugins' tests" if parts[0] == "plugins" else "tests"
        yield "= all tests"
    elif parts[0] == "rlplug":
        yield "/".join(parts[:2]) if len(parts) > 2 else "rlplug/*.py"
        yield "= core"
    elif parts[0] == "plugins":
        yield "/".join(parts[:2])
        yield "= plugins"
    else:
        yield parts[0] if len(parts) > 1 else "*.py"


def main() -> int:
    """Print the rooms, and say whether any is over its budget."""
    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    listing = subprocess.run(
        ["git", "-C", checkout, "ls-files", "*.py"], check=True, capture_output=True, text=True
    )
    files, lines, tokens = Counter[str](), Counter[str](), Counter[str]()
    for name in listing.stdout.splitlines():
        path = checkout / name
        if path.exists():
            code, words = measure(path.read_text(encoding="utf-8"))
            for room in rooms(Path(name)):
                files[room] += 1
                lines[room] += code
                tokens[room] += words
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    budgets = project["tool"]["rlplug"]["budgets"]
    print(f"{'room':<28}{'files':>6}{'code':>8}{'budget':>8}{'tokens/line':>13}")
    over = sorted(room for room, budget in budgets.items() if lines[room] > budget)
    for room in sorted(lines, key=lambda name: (name.startswith("="), name)):
        budget = f"{budgets[room]:,}" if room in budgets else ""
        density = tokens[room] / max(lines[room], 1)
        mark = "  OVER" if room in over else ""
        print(f"{room:<28}{files[room]:>6}{lines[room]:>8,}{budget:>8}{density:>13.1f}{mark}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
