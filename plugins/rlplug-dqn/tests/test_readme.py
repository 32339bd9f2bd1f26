"""README says what is so: its tables are the options, its example runs as written."""

from __future__ import annotations

from typing import Any

import attrs
from rlplug_dqn import DQN, DQNConfig, RainbowConfig


def test_the_table_lists_every_option_with_its_default_and_help(readme: Any) -> None:
    assert readme.rows("DQN") == readme.option_rows(DQNConfig)


def test_the_table_of_rainbow_lists_what_differs(readme: Any) -> None:
    plain, rainbow = attrs.fields_dict(DQNConfig), attrs.fields_dict(RainbowConfig)
    assert readme.rows("Rainbow") == {
        name: readme.value(field.default)
        for name, field in rainbow.items()
        if field.default != plain[name].default
    }


def test_the_table_of_presets_lists_all_of_them(readme: Any) -> None:
    assert set(readme.rows("Presets")) == set(DQN.presets)


def test_the_example_prints_what_it_says(example: tuple[str, str]) -> None:
    printed, promised = example
    assert printed == promised
