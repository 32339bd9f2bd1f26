"""What docs/conformance.md says of the kit is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rlplug.testing.checks import CHECKS
from rlplug.testing.subject import FAST_OPTIONS, Subject

PAGE = (Path(__file__).parent.parent / "docs" / "conformance.md").read_text(encoding="utf-8")
WHOM = {"both": "both", "algorithm": "algorithms", "addon": "add-ons"}


def test_the_page_lists_every_check_with_its_description() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\w-]+) \| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)
    wanted = [
        (check.name, WHOM[check.whom], check.tier, check.description)
        for check in CHECKS
        if not check.name.startswith(("solves_", "variants_solve_"))
    ]
    assert rows == wanted


def test_the_class_on_the_page_checks_what_it_names() -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    shown = names["TestQLearning"]
    subject = Subject.of(shown.plugin, options=shown.options, variants=shown.variants)
    assert subject.config().width == 16
    assert subject.worth_training == ({"double": False},)
    assert hasattr(shown, "test_targets_are_used")
    assert FAST_OPTIONS["gamma"] == 0.9


def test_without_variants_bools_literals_and_n_step_returns_are_tried() -> None:
    subject = Subject.of("dqn", variants=())
    found = [one for one in subject.switches if one in ({"double": True}, {"n_step": 3})]
    assert found == [{"double": True}, {"n_step": 3}]
    assert {"loss": "mse"} in subject.switches
