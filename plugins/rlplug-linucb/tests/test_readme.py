"""README says what is so: its table is the options, its example runs as written."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest
from rlplug_linucb import LinUCBConfig

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_table_lists_every_option_with_its_default_and_help() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", README, re.MULTILINE))
    for field in attrs.fields(LinUCBConfig):
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        schedule = " Takes a schedule." if field.metadata["schedulable"] else ""
        assert rows.pop(field.name) == f"{default} | {field.metadata['help']}{schedule}"
    assert not rows


def test_the_example_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    promised = re.search(r"print\(.*\)  # (.*)", example)
    assert promised is not None
    assert capsys.readouterr().out.strip() == promised[1]
