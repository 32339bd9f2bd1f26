"""Spaces that are no bandit's, and options that do not go together, are refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from gymnasium import spaces
from rlplug_linucb import Layout, LinUCB, LinUCBConfig
from rlplug_linucb.layout import layout_of

from rlplug.errors import UnsupportedSpaceError

CONTEXT = spaces.Box(-1, 1, (3,))
ARMS = spaces.Box(-1, 1, (4, 2))
FEATURED = spaces.Dict(context=CONTEXT, arms=ARMS, action_mask=spaces.MultiBinary(4))
FOUR = spaces.Discrete(4)


@pytest.mark.parametrize(
    ("observations", "expected"),
    [
        (CONTEXT, Layout(num_arms=4, context_dim=3)),
        (spaces.Box(0, 255, (3,), numpy.uint8), Layout(num_arms=4, context_dim=3)),
        (
            spaces.Dict(context=CONTEXT, action_mask=spaces.MultiBinary(4)),
            Layout(num_arms=4, context_dim=3),
        ),
        (FEATURED, Layout(num_arms=4, context_dim=3, arm_dim=2)),
        (spaces.Dict(arms=ARMS), Layout(num_arms=4, arm_dim=2)),
    ],
)
def test_the_layout_is_read_from_the_spaces(
    observations: spaces.Space[Any], expected: Layout
) -> None:
    assert layout_of(observations, FOUR) == expected
    assert LinUCB().supports(observations, FOUR) is None


@pytest.mark.parametrize(
    ("observations", "actions", "options", "reason"),
    [
        (CONTEXT, spaces.Box(-1, 1, (2,)), {}, "needs Discrete actions, found Box"),
        (CONTEXT, spaces.Discrete(1), {}, "needs two arms, found one"),
        (CONTEXT, spaces.Discrete(4, start=1), {}, "counts arms from 0"),
        (spaces.Box(0, 1, (8, 8, 3)), FOUR, {}, "as a Box of shape (features)"),
        (spaces.Discrete(5), FOUR, {}, "needs a Box of context features"),
        (spaces.Dict(context=spaces.Discrete(5)), FOUR, {}, "needs context as a Box"),
        (spaces.Dict(arms=spaces.Box(-1, 1, (5, 2))), FOUR, {}, "arms as a Box of shape (4, f"),
        (spaces.Dict(image=CONTEXT), FOUR, {}, "found image"),
        (
            spaces.Dict(),
            FOUR,
            {},
            "needs at least one part of observations",
        ),
        (
            spaces.Dict(context=CONTEXT, action_mask=spaces.MultiBinary(3)),
            FOUR,
            {},
            "one value per arm (4), found shape (3,)",
        ),
        (FEATURED, FOUR, {"arms": "fixed"}, "may not carry features"),
        (CONTEXT, FOUR, {"arms": "featured"}, "needs an observation key 'arms'"),
        (spaces.Dict(context=CONTEXT), FOUR, {"arms": "featured"}, "key 'arms', found context"),
        (FEATURED, FOUR, {"model": "disjoint"}, "featured arms are others in every context"),
        (CONTEXT, FOUR, {"use_interaction_features": False}, "model = 'joint' with use_inter"),
        (
            CONTEXT,
            FOUR,
            {"use_interaction_features": False, "model": "hybrid"},
            "'hybrid' weighs the context anew",
        ),
    ],
)
def test_what_cannot_be_handled_is_refused_with_the_reason(
    observations: spaces.Space[Any],
    actions: spaces.Space[Any],
    options: dict[str, Any],
    reason: str,
) -> None:
    algorithm = LinUCB(LinUCBConfig(**options))
    said = algorithm.supports(observations, actions)
    assert said is not None
    assert reason in said
    with pytest.raises(UnsupportedSpaceError):
        algorithm.build(observations, actions, algorithm.config)
