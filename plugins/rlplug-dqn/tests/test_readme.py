"""README says what is so: its tables are the options, its example runs as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from rlplug_dqn import DQN, DQNConfig, RainbowConfig

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def section(title: str) -> dict[str, str]:
    (text,) = re.findall(rf"^## {title}\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))


def written(default: Any) -> str:
    """As TOML has it, but words without quotation marks."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return str(list(default))
    return str(default) or '""'


def test_the_table_lists_every_option_with_its_default_and_help() -> None:
    rows = section("DQN")
    for field in attrs.fields(DQNConfig):
        schedule = " Takes a schedule." if field.metadata["schedulable"] else ""
        wanted = f"{written(field.default)} | {field.metadata['help']}{schedule}"
        assert rows.pop(field.name) == wanted
    assert not rows


def test_the_table_of_rainbow_lists_what_differs() -> None:
    plain, rainbow = attrs.fields_dict(DQNConfig), attrs.fields_dict(RainbowConfig)
    assert section("Rainbow") == {
        name: written(field.default)
        for name, field in rainbow.items()
        if field.default != plain[name].default
    }


def test_the_table_of_presets_lists_all_of_them() -> None:
    assert set(section("Presets")) == set(DQN.presets)


def test_the_example_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    promised = re.search(r"print\(.*\)  # (.*)", example)
    assert promised is not None
    assert capsys.readouterr().out.strip() == promised[1]
