"""What is given by hand and cannot be meant is refused with a reason, and changes nothing."""

from __future__ import annotations

import numpy
import pytest
from rlplug_linucb import Layout, LinUCBConfig, LinUCBModule

from rlplug.errors import RequestError

NAMES = ("x", "y", "z")


@pytest.mark.parametrize(
    ("layout", "other", "model"),
    [
        (
            Layout(num_arms=3, context_dim=2, arm_names=NAMES),
            Layout(num_arms=3, context_dim=5, arm_names=NAMES[::-1]),
            "auto",
        ),
        (
            Layout(num_arms=2, arm_dim=2, arm_names=("a", "b")),
            Layout(num_arms=3, arm_dim=4, arm_names=NAMES),
            "auto",
        ),
        (
            Layout(num_arms=3, context_dim=2, arm_names=NAMES),
            Layout(num_arms=2, context_dim=3, arm_names=("a", "b")),
            "joint",
        ),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(
    layout: Layout, other: Layout, model: str
) -> None:
    config = LinUCBConfig(model=model)  # type: ignore[arg-type] # one of its names
    one = LinUCBModule(layout, config)
    before = {name: value.clone() for name, value in one.state_dict().items()}
    with pytest.raises(RequestError, match=r"does not fit: \S+ has the shape .*, the module's has"):
        one.load_state_dict(LinUCBModule(other, config).state_dict())
    assert one.layout == layout
    assert all(value.equal(before[name]) for name, value in one.state_dict().items())


def test_names_are_left_where_a_state_lacks_regressions() -> None:
    one = LinUCBModule(Layout(num_arms=3, context_dim=2, arm_names=NAMES))
    state = LinUCBModule(Layout(num_arms=3, context_dim=2, arm_names=NAMES[::-1])).state_dict()
    del state["regressions.sums"]
    with pytest.raises(RuntimeError, match=r"regressions\.sums"):
        one.load_state_dict(state)
    assert one.layout.arm_names == NAMES
