"""Options are typed, bounded, and refused where they would do nothing."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from rlplug_linucb import LinUCBConfig

from rlplug.config.strict import structure


def test_every_option_has_help_in_one_line() -> None:
    for field in attrs.fields(LinUCBConfig):
        assert field.metadata["help"].endswith("."), field.name
        assert "\n" not in field.metadata["help"], field.name


def test_options_are_structured_strictly_and_alpha_may_be_a_schedule() -> None:
    config, problems = structure(LinUCBConfig, {"alpha": [[0, 2.0], [100, 0.0]]}, "algorithm")
    assert not problems
    assert config is not None
    assert config.alpha.at(50) == 1.0  # type: ignore[attr-defined] # a schedule


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"alpha": -1}, "must be at least 0"),
        ({"l2_lambda": -1}, "must be at least 0"),
        ({"discount": 1.5}, "must be at most 1"),
        ({"discount": 0}, "must be greater than 0"),
        ({"model": "joined"}, "did you mean 'joint'"),
        ({"arms": 3}, "expected one of"),
        ({"refresh_every": 0}, "must be at least 1"),
        ({"lamda": 1}, "unknown option"),
        ({"squared_discount": True}, "no effect at discount = 1"),
        (
            {"squared_discount": True, "discount": 0.9, "model": "hybrid"},
            "set model to 'joint' or 'disjoint'",
        ),
    ],
)
def test_wrong_options_are_refused_with_the_reason(values: dict[str, Any], complaint: str) -> None:
    config, problems = structure(LinUCBConfig, values, "algorithm")
    assert config is None
    assert complaint in problems[0].message
