"""READMEs of plugins say what is so: their tables are the options, their examples run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

from rlplug.config.sections import CORE_SECTIONS
from rlplug.registry import Registry

PLUGINS = Path(__file__).parents[1] / "plugins"

OWN = {
    "bandits": {
        "UCB1": "ucb1",
        "MetricUCB": "metric-ucb",
        "Thompson sampling": "thompson",
        "Epsilon-greedy": "epsilon-greedy",
        "Softmax": "softmax",
    },
    "bc": {"Options": "bc"},
    "dqn": {"DQN": "dqn"},
    "ema": {"Options": "ema"},
    "linucb": {"LinUCB": "linucb", "LinTS": "lints", "Neural LinUCB": "neural-linucb"},
    "ppo": {"PPO": "ppo", "A2C": "a2c"},
    "rnd": {"Options": "rnd"},
    "sac": {"SAC": "sac", "TD3": "td3"},
}
"""Headings of tables that list all options, and whose they are."""


def kind_of(name: str) -> Any:
    registry = Registry.installed()
    return registry.load(registry.named(name))


class Readme:
    """A README whose tables and example are compared with the code."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")

    def section(self, title: str) -> str:
        """The text under a heading."""
        (text,) = re.findall(rf"^## {title}\n(.*?)(?:^## |\Z)", self.text, re.MULTILINE | re.DOTALL)
        return str(text)

    def rows(self, title: str) -> dict[str, str]:
        """The rows of a section's table by their first column, a name in backticks."""
        return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", self.section(title), re.MULTILINE))

    def option_rows(self, config: type[Any]) -> dict[str, str]:
        """The rows that describe all options of a plugin."""
        return {
            field.name: f"{self.value(field.default)} | {field.metadata['help']}"
            + (" Takes a schedule." if field.metadata["schedulable"] else "")
            for field in attrs.fields(config)
        }

    def value(self, default: Any) -> str:
        """A default as TOML has it, but texts without quotation marks."""
        if isinstance(default, bool):
            return str(default).lower()
        if isinstance(default, tuple):
            return str(list(default))
        return str(default) or '""'


def readme_of(package: str) -> Readme:
    return Readme(PLUGINS / f"rlplug-{package}" / "README.md")


@pytest.mark.parametrize("package", OWN)
def test_tables_list_every_option_with_its_default_and_help(package: str) -> None:
    readme = readme_of(package)
    for title, name in OWN[package].items():
        assert readme.rows(title) == readme.option_rows(kind_of(name).Config), title


@pytest.mark.parametrize(("package", "names"), [("dqn", ["dqn"]), ("sac", ["sac", "td3"])])
def test_the_table_of_presets_lists_all_of_them(package: str, names: list[str]) -> None:
    presets = {preset for name in names for preset in kind_of(name).presets}
    assert set(readme_of(package).rows("Presets")) == presets


def test_tables_of_what_differs_from_dqn_list_that() -> None:
    plain, rainbow, vdn = (
        attrs.fields_dict(kind_of(name).Config) for name in ("dqn", "rainbow", "vdn")
    )
    readme = readme_of("dqn")
    assert readme.rows("Rainbow") == {
        name: readme.value(field.default)
        for name, field in rainbow.items()
        if field.default != plain[name].default
    }
    own = readme.option_rows(kind_of("vdn").Config)
    expected = {name: row for name, row in own.items() if name in vdn.keys() - plain.keys()}
    assert readme_of("vdn").rows("Options") == expected


def test_every_detail_of_ppo_has_a_row_and_names_options_that_there_are() -> None:
    section = readme_of("ppo").section("The 37 details")
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [line for line in lines[1:] if not line.startswith("| *")]
    assert len(rows) == 37 + 4
    options = set(attrs.fields_dict(kind_of("ppo").Config))
    sections = {
        f"{name}.{field.name}" for name, one in CORE_SECTIONS.items() for field in attrs.fields(one)
    }
    named = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert len(named) > 25
    assert set(named) <= options | sections


@pytest.mark.parametrize("readme", sorted(PLUGINS.glob("*/README.md")), ids=lambda p: p.parent.name)
def test_the_example_prints_what_it_says(
    readme: Path,
    home: Path,
    tmp_path: Path,
    empty_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The only Python block, whose comment says what it prints."""
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    (promised,) = re.findall(r"print\(.*\)  # (.*)", code)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rlplug_runs").mkdir()
    shutil.copy(empty_store, tmp_path / "rlplug_runs")
    exec(compile(code, str(readme), "exec"), {})
    assert capsys.readouterr().out.strip() == promised
