"""No two files import each other: not while type checking, and not inside of functions either."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [ROOT / "rlplug", *sorted(ROOT.glob("plugins/*/rlplug_*"))]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_two_files_import_each_other(package: Path) -> None:
    assert import_cycles(import_graph(package)) == []


def test_a_cycle_is_found_through_type_checking_functions_and_packages(tmp_path: Path) -> None:
    package = tmp_path / "house"
    sources = {
        "__init__.py": "from house.kitchen import Stove",
        "kitchen.py": "from house.cellar import wine\nimport gymnasium",
        "cellar/__init__.py": "",
        "cellar/wine.py": "def drink():\n    from house.stairs import up",
        "stairs.py": "if TYPE_CHECKING:\n    from house.kitchen import Stove",
        "roof.py": "from house import Stove",
        "tower.py": "import house.clock",
        "clock.py": "import house.tower",
    }
    for name, source in sources.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source)
    assert import_graph(package)["house.roof"] == {"house"}
    assert import_cycles(import_graph(package)) == [
        ["house.cellar.wine", "house.kitchen", "house.stairs"],
        ["house.clock", "house.tower"],
    ]


def import_graph(package: Path) -> dict[str, set[str]]:
    """The files of a package that each of its files imports, all by their module names."""
    files = {}
    for path in package.rglob("*.py"):
        *folders, name = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(folders if name == "__init__" else [*folders, name])] = path
    return {module: set(_imported(path, files)) for module, path in files.items()}


def import_cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one file, and files that import themselves."""
    reached = {module: _reached_from(module, graph) for module in graph}
    found = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in graph
        if module in reached[module]
    }
    return [list(cycle) for cycle in sorted(found)]


def _imported(path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    """`from a import b` imports the file a/b.py if it exists, or else a."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: an import without the package's name"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            named = [one if one in files else str(node.module) for one in whole]
        else:
            continue
        yield from (one for one in named if one in files)


def _reached_from(module: str, graph: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [*graph[module]]
    while waiting:
        other = waiting.pop()
        if other not in reached:
            reached.add(other)
            waiting += graph[other]
    return reached
