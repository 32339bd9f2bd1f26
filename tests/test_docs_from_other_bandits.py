"""The blocks of docs/from-other-bandits.md run, with the libraries that the test extra installs."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplug import ope
from rlplug.config.sources import parse_setting

PAGE = (Path(__file__).parent.parent / "docs" / "from-other-bandits.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n# (\w+)\n(.*?)```", PAGE, re.DOTALL)


def test_the_blocks_of_the_page_run_one_after_another(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    ran = []
    for package, code in BLOCKS:
        if package == "rlplug" or importlib.util.find_spec(package) is not None:
            exec(compile(code, f"block {len(ran)} of {package}", "exec"), names)
            ran.append(package)
    assert ran.count("rlplug") == 4
    assert "'snips': " in capsys.readouterr().out
    missing = {package for package, _ in BLOCKS} - set(ran)
    if missing:
        pytest.skip(f"{', '.join(sorted(missing))}: pip install 'rlplug[test]' has them")


def test_every_function_and_option_of_the_tables_exists(
    rlplug: Callable[..., Any], home: Path
) -> None:
    section = PAGE.split("## Open Bandit Pipeline")[1].split("```")[0]
    right = [row.split(" | ")[1] for row in section.splitlines() if row.startswith("| `")]
    called = {name for cell in right for name in re.findall(r"`(\w+)\(", cell)}
    assert called
    assert all(hasattr(ope, name) for name in called)
    for algorithm, settings in re.findall(r"--algo ([\w-]+)((?: --set \w+=[\w.]+)*)", PAGE):
        options = {
            one.key: one.value for one in map(parse_setting, re.findall(r"--set (\S+)", settings))
        }
        if "offline_evaluation" not in options:
            given = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
            done = rlplug("run", "--algo", algorithm, *given, "--steps", "100", "--dry-run")
            assert done.code == 0, done.err
