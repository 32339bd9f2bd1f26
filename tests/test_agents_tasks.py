"""The tasks of examples/agent_tasks.py stay in the spaces that they declare."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from examples.agent_tasks import Lottery, MatrixGame, Meeting, TwoStep


@pytest.mark.parametrize("task", [Lottery, MatrixGame, Meeting, TwoStep])
def test_all_that_a_task_shows_is_in_its_spaces(task: Any) -> None:
    env = task()
    state_space = getattr(env, "state_space", None)
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    for seed in range(20):
        seen, _ = env.reset(seed=seed)
        for agent in env.possible_agents:
            env.action_space(agent).seed(seed)
        while env.agents:
            shown = {**seen, **({} if state_space is None else {"state": env.state()})}
            for name, one in shown.items():
                space = state_space if name == "state" else env.observation_space(name)
                assert space.contains(numpy.asarray(one)), (name, one, space)
                lowest[name] = numpy.minimum(lowest.get(name, one), one)
                highest[name] = numpy.maximum(highest.get(name, one), one)
            chosen = {agent: env.action_space(agent).sample() for agent in env.agents}
            seen, *_ = env.step(chosen)
    # What is never seen would not need to be in the space.
    for name, one in lowest.items():
        space = state_space if name == "state" else env.observation_space(name)
        if isinstance(task(), Lottery | Meeting):
            assert (one == space.low).any(), name
            assert (highest[name] == space.high).any(), name
