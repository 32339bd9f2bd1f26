"""README says what is so: its table is the options, its example runs as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from rlplug_linucb import LinTSConfig, LinUCBConfig, NeuralLinUCBConfig

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("title", "config"),
    [
        ("LinUCB", LinUCBConfig),
        ("LinTS", LinTSConfig),
        ("Neural LinUCB", NeuralLinUCBConfig),
    ],
)
def test_the_table_lists_every_option_with_its_default_and_help(
    title: str, config: type[Any]
) -> None:
    (section,) = re.findall(rf"^## {title}\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
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


def test_the_example_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    promised = re.search(r"print\(.*\)  # (.*)", example)
    assert promised is not None
    assert capsys.readouterr().out.strip() == promised[1]
