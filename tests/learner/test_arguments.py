"""Arguments by hand that a learner honours, or refuses by what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.spaces import Box, Discrete

import rlplug
from rlplug.errors import RequestError

SPACES = OBSERVATIONS, ACTIONS = Box(-1.0, 1.0, (4,)), Discrete(2)
TWO = {"a": SPACES, "b": SPACES}


def build(**how: Any) -> Any:
    return rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, **how)


def said(call: Callable[[], object]) -> str:
    """The message of the error with which a call is refused."""
    with pytest.raises(RequestError) as raised:
        call()
    return str(raised.value)


# -- options of build_learner --------------------------------------------------------------------


@pytest.mark.parametrize(("given", "wanted"), [(["a"], {"a"}), (["*"], None), (["b*"], {"b"})])
def test_build_learner_honours_modules_to_train(given: list[str], wanted: Any) -> None:
    learner = rlplug.build_learner(
        "dqn", modules=TWO, options={"learner.modules_to_train": given, "net_arch": [4]}
    )
    assert learner.modules_to_train == wanted
    trained = [one for one in "ab" if learner.can_module_be_updated(one)]
    assert trained == sorted(wanted or "ab")


def test_build_learner_honours_options_of_single_modules() -> None:
    learner = rlplug.build_learner(
        "dqn", modules=TWO, options={"modules.a.learning_rate": 0.5, "net_arch": [4]}
    )
    rates = [learner.get_optimizer(one).param_groups[0]["lr"] for one in "ab"]
    assert rates[0] == 0.5 != rates[1]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("learner.modules_to_train", ["z"], "'z' is no module"),
        ("modules.z.gamma", 0.5, "options of build_learner have module 'z', which is not built"),
        ("learner.on_divergence", "stop", "learner.on_divergence   is for runs"),
        ("learner.trace_hooks", True, "learner.trace_hooks   is for runs"),
    ],
)
def test_build_learner_refuses_options_without_effect(
    option: str, value: Any, message: str
) -> None:
    text = said(
        lambda: rlplug.build_learner("dqn", modules=TWO, options={option: value, "net_arch": [4]})
    )
    assert message in text
    assert "a, b" in text or "is for runs" in text
