"""README says what is so: its table has the options, its example runs as written."""

from __future__ import annotations

from typing import Any

import attrs
from rlplug_dqn import DQNConfig
from rlplug_vdn import VDNConfig


def test_the_table_lists_the_options_that_dqn_has_not(readme: Any) -> None:
    own = attrs.fields_dict(VDNConfig).keys() - attrs.fields_dict(DQNConfig).keys()
    rows = {name: row for name, row in readme.option_rows(VDNConfig).items() if name in own}
    assert readme.rows("Options") == rows


def test_the_example_prints_what_it_says(example: tuple[str, str]) -> None:
    printed, promised = example
    assert printed == promised
