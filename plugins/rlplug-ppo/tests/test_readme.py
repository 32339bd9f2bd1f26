"""README says what is so: its tables are the options, its example runs as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from rlplug_ppo import A2CConfig, PPOConfig

from rlplug.config.sections import CORE_SECTIONS


@pytest.mark.parametrize(("title", "config"), [("PPO", PPOConfig), ("A2C", A2CConfig)])
def test_the_table_lists_every_option_with_its_default_and_help(
    title: str, config: type[Any], readme: Any
) -> None:
    assert readme.rows(title) == readme.option_rows(config)


def test_every_detail_has_a_row_and_names_options_that_there_are(readme: Any) -> None:
    lines = [
        line for line in readme.section("The 37 details").splitlines() if line.startswith("| ")
    ]
    rows = [line for line in lines[1:] if not line.startswith("| *")]
    assert len(rows) == 37 + 4
    options = {field.name for field in attrs.fields(PPOConfig)}
    sections = {
        f"{name}.{field.name}" for name, one in CORE_SECTIONS.items() for field in attrs.fields(one)
    }
    named = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert len(named) > 25
    assert {name for name in named if name not in options | sections} == set()


def test_the_example_prints_what_it_says(home: Path, example: tuple[str, str]) -> None:
    printed, promised = example
    assert printed == promised
