"""README says what is so: its tables are the options, its example runs as written."""

from __future__ import annotations

from typing import Any

import pytest
from rlplug_sac import SAC, TD3, SACConfig, TD3Config


@pytest.mark.parametrize(("title", "config"), [("SAC", SACConfig), ("TD3", TD3Config)])
def test_the_table_lists_every_option_with_its_default_and_help(
    title: str, config: type[Any], readme: Any
) -> None:
    assert readme.rows(title) == readme.option_rows(config)


def test_the_table_of_presets_lists_all_of_them(readme: Any) -> None:
    assert set(readme.rows("Presets")) == set(SAC.presets) | set(TD3.presets)


def test_the_example_prints_what_it_says(example: tuple[str, str]) -> None:
    printed, promised = example
    assert printed == promised
