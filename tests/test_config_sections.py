"""Limits of the core's options, alone and together."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlplug.config.option import above, at_least, at_most, below, between
from rlplug.config.sections import CORE_SECTIONS
from rlplug.config.strict import structure


@pytest.mark.parametrize(
    ("path", "last", "beyond"),
    [
        ("run.steps", 1, 0),
        ("env.normalize_gamma", 0.0, -0.1),
        ("env.normalize_gamma", 1.0, 1.1),
        ("learner.norm_type", 0.1, 0.0),
        ("learner.norm_type", math.inf, math.nan),
        ("learner.accumulate", 1, 0),
        ("compute.scaler_growth_factor", 1.1, 1.0),
        ("compute.scaler_backoff_factor", 1e-6, 1e-7),
        ("compute.scaler_backoff_factor", 1.0, 1.1),
        ("compute.device", "cuda:10", "cuda:1 "),
        ("evaluation.episodes", 0, -1),
    ],
)
def test_an_option_takes_the_last_value_of_its_range_and_none_beyond(
    path: str, last: Any, beyond: Any
) -> None:
    section, _, name = path.partition(".")
    required = {"algorithm": "any"} if section == "run" else {}
    kind = CORE_SECTIONS[section]
    made, problems = structure(kind, {**required, name: last}, section)
    assert (getattr(made, name), problems) == (last, [])
    made, problems = structure(kind, {**required, name: beyond}, section)
    assert (made, [problem.path for problem in problems]) == (None, [path])


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (at_least(2), {1: "must be at least 2, got 1", 2: None, 3: None}),
        (above(2), {1: "must be greater than 2, got 1", 2: "must be greater than 2, got 2"}),
        (above(2), {3: None}),
        (at_most(2), {1: None, 2: None, 3: "must be at most 2, got 3"}),
        (below(2), {1: None, 2: "must be less than 2, got 2", 3: "must be less than 2, got 3"}),
        (between(1, 3), {0: "must be between 1 and 3, got 0", 1: None, 2: None, 3: None}),
        (between(1, 3), {4: "must be between 1 and 3, got 4"}),
    ],
)
def test_a_check_says_what_a_value_must_be(check: Any, said: dict[int, str | None]) -> None:
    assert {value: check(value) for value in said} == said


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        ({"patience": 1}, "patience"),
        ({"stop_at_return": 1.0}, "stop_at_return"),
        ({"video": True}, "video"),
        ({"video": True, "patience": 2}, "patience and video"),
    ],
)
def test_what_needs_evaluations_is_refused_without_them(idle: dict[str, Any], said: str) -> None:
    kind = CORE_SECTIONS["evaluation"]
    assert structure(kind, {"episodes": 1, **idle}, "evaluation")[1] == []
    _, (problem,) = structure(kind, {"episodes": 0, **idle}, "evaluation")
    expected = f"{said} would have no effect with episodes = 0, which disables evaluation"
    assert problem.message == expected
