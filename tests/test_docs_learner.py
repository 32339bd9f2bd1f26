"""What docs/learner.md shows runs as it is written, and `build_learner` refuses what cannot be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest

import rlplug
from rlplug.errors import ConfigError, RequestError, RunFailedError, UnsupportedSpaceError

PAGE = Path(__file__).parent.parent / "docs" / "learner.md"
OBSERVATIONS = gymnasium.spaces.Box(-1.0, 1.0, (3,))
ACTIONS = gymnasium.spaces.Discrete(2)


def test_the_page_runs_as_it_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
    learner = names["learner"]
    assert list(learner.modules) == ["default", "frozen"]
    assert (tmp_path / "saved" / "state.json").is_file()
    assert names["results"]["rival"]["loss"] > 0


def test_each_module_has_its_spaces_and_its_options() -> None:
    wide = gymnasium.spaces.Box(-1.0, 1.0, (5,))
    learner = rlplug.build_learner(
        "ppo",
        options={"net_arch": [8]},
        modules={"a": (OBSERVATIONS, ACTIONS), "b": (wide, ACTIONS)},
        module_options={"b": {"net_arch": [16]}},
    )
    shapes = {
        module_id: {tuple(one.shape) for one in module.parameters()}
        for module_id, module in learner.modules.items()
    }
    assert (8, 3) in shapes["a"]
    assert (16, 5) in shapes["b"]


def test_the_same_seed_builds_the_same_weights() -> None:
    first, second, other = (
        rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, seed=seed).weight_digests()
        for seed in (1, 1, 2)
    )
    assert first == second != other


def test_what_cannot_be_built_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gamma'"):
        rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, options={"gamna": 0.9})
    for spaces in ((), (OBSERVATIONS,), (None, ACTIONS)):
        with pytest.raises(RequestError, match="needs an observation space and an action space"):
            rlplug.build_learner("dqn", *spaces)
        if spaces:
            with pytest.raises(RequestError, match="needs an observation space and an action"):
                rlplug.build_learner("dqn", *spaces, modules={"a": (OBSERVATIONS, ACTIONS)})
    with pytest.raises(UnsupportedSpaceError, match="module 'default'"):
        rlplug.build_learner("dqn", OBSERVATIONS, OBSERVATIONS)
    learner = rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS)
    with pytest.raises(UnsupportedSpaceError, match="module 'wide'"):
        learner.add_module("wide", (OBSERVATIONS, OBSERVATIONS))
    assert list(learner.modules) == list(learner.spaces) == ["default"]
    with pytest.raises(RequestError, match="no module 'b'"):
        rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, module_options={"b": {"gamma": 0.1}})


@pytest.mark.parametrize("actions", [[0.5, 1.0], [numpy.nan, 0.0]], ids=str)
def test_discrete_actions_that_are_not_whole_are_refused(actions: list[float]) -> None:
    learner = rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS)
    rows = {
        "observations": numpy.zeros((2, 3), numpy.float32),
        "next_observations": numpy.zeros((2, 3), numpy.float32),
        "rewards": numpy.ones(2, numpy.float32),
        "terminated": numpy.ones(2, bool),
        "truncated": numpy.zeros(2, bool),
    }
    with pytest.raises(RunFailedError, match="is no whole number"):
        learner.update_from_batch(rlplug.Batch({**rows, "actions": numpy.array(actions)}))
    assert learner.timestep == 0
    learner.update_from_batch(rlplug.Batch({**rows, "actions": numpy.array([0, 1])}))


def test_gamma_of_one_module_holds_from_when_it_is_set_and_comes_back() -> None:
    rows = {
        "observations": numpy.ones((4, 3), numpy.float32),
        "next_observations": numpy.ones((4, 3), numpy.float32),
        "actions": numpy.zeros(4, numpy.int64),
        "rewards": numpy.zeros(4, numpy.float32),
        "terminated": numpy.zeros(4, bool),
        "truncated": numpy.zeros(4, bool),
    }

    def loss(learner: Any) -> float:
        return float(learner.update_from_batch(rlplug.Batch(rows))["default"]["loss"])

    plain, later, loaded = (
        rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, seed=1) for _ in range(3)
    )
    given = rlplug.build_learner(
        "dqn", OBSERVATIONS, ACTIONS, seed=1, module_options={"default": {"gamma": 0.1}}
    )
    later.set_options("default", {"gamma": 0.1})
    loaded.set_state(later.get_state())
    assert loss(given) == loss(later) == loss(loaded) != loss(plain)
