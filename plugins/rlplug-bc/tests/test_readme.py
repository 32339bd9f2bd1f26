"""README says what is so: its table is the options, its example runs as written."""

from __future__ import annotations

from typing import Any

from rlplug_bc import BCConfig


def test_the_table_lists_every_option_with_its_default_and_help(readme: Any) -> None:
    assert readme.rows("Options") == readme.option_rows(BCConfig)


def test_the_example_prints_what_it_says(example: tuple[str, str], home: Any) -> None:
    printed, promised = example
    assert printed == promised
