"""README says what is so: its tables are the options, its example runs as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from rlplug_ppo import A2CConfig, PPOConfig

from rlplug.config.sections import CORE_SECTIONS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    (text,) = re.findall(rf"^## {title}\n(.*?)(?:^## |\Z)", README, re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.mark.parametrize(("title", "config"), [("PPO", PPOConfig), ("A2C", A2CConfig)])
def test_the_table_lists_every_option_with_its_default_and_help(
    title: str, config: type[Any]
) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section(title), re.MULTILINE))
    for field in attrs.fields(config):
        schedule = " Takes a schedule." if field.metadata["schedulable"] else ""
        assert (
            rows.pop(field.name) == f"{written(field.default)} | {field.metadata['help']}{schedule}"
        )
    assert not rows


def written(default: Any) -> str:
    """As TOML has it, but words without quotation marks."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return str(list(default))
    return str(default) or '""'


def test_every_detail_has_a_row_and_names_options_that_there_are() -> None:
    lines = [line for line in section("The 37 details").splitlines() if line.startswith("| ")]
    rows = [line for line in lines[1:] if not line.startswith("| *")]
    assert len(rows) == 37 + 4
    options = {field.name for field in attrs.fields(PPOConfig)}
    sections = {
        f"{name}.{field.name}" for name, one in CORE_SECTIONS.items() for field in attrs.fields(one)
    }
    named = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert len(named) > 25
    assert {name for name in named if name not in options | sections} == set()


def test_the_example_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))
    exec(compile(example, "README.md", "exec"), {})
    promised = re.search(r"print\(.*\)  # (.*)", example)
    assert promised is not None
    assert capsys.readouterr().out.strip() == promised[1]
