"""The commands, columns, options and metrics of docs/logs.md are those that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy
import pytest

import rlplug as library
from rlplug.config.sections import COLUMN_OPTIONS, DataSection

PAGE = (Path(__file__).parent.parent / "docs" / "logs.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("rlplug ") and "--init-from" not in line and " last" not in line
]


@pytest.fixture
def folder(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the page names: rows of CartPole's and LinearBandit's shapes."""
    monkeypatch.chdir(tmp_path)
    random = numpy.random.default_rng(0)

    def write(name: str, dim: int, arms: int, **more: Any) -> None:
        context = random.standard_normal((50, dim)).astype(numpy.float32)
        rows = {"context": context, "action": numpy.arange(50) % arms}
        Path(name).parent.mkdir(exist_ok=True)
        numpy.savez(
            f"{name}.npz",
            **rows,
            reward=random.random(50),
            propensity=numpy.full(50, 1 / arms),
            **more,
        )

    write("clicks", 10, 10)
    write("2026-01", 10, 10)
    write("folder/more", 10, 10)
    write("recording/part", 4, 2, terminated=numpy.arange(50) % 10 == 9)
    Path("shop.csv").write_text("user_id,zip,banner,clicked\n7,8001,red,1\n8,8002,blue,0\n")
    return tmp_path


@pytest.mark.parametrize("line", [one for one in COMMANDS if one.startswith("rlplug run")])
def test_the_commands_of_the_page_are_accepted(
    line: str, folder: Path, rlplug: Callable[..., Any]
) -> None:
    given = shlex.split(line.replace(".parquet", ".npz"))[1:]
    done = rlplug(*given, "--dry-run")
    assert done.code == 0, done.err


def test_the_table_lists_every_option_that_names_a_column() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE, re.M))
    fields = attrs.fields_dict(DataSection)
    assert {name: one for name, one in rows.items() if name in fields} == {
        name: fields[name].default for name in COLUMN_OPTIONS
    }
    assert {name for name in fields if name not in PAGE} == set()


def test_the_metrics_of_the_page_are_reported(folder: Path) -> None:
    promised = set(re.findall(r"`(ope/\w+)`", PAGE.split("## Judge while learning")[1]))
    options = {"tracking.enabled": False, "offline_evaluation": "accepted"}
    result = library.run("linucb", data="clicks.npz", options=options)
    assert {name for name in result.metrics if name.startswith("ope/")} == promised


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (promised,) = re.findall(r"print\(.*\)  # (.*)", code)
    exec(compile(code, "logs.md", "exec"), {})
    assert capsys.readouterr().out.strip() == promised
