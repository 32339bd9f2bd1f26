"""Runs with several agents over several processes: learners, and runners on a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlplug
from rlplug.trees import read_tree

RELAY = "tests.agent_games:Relay"
TWO = {"modules.one.agents": "first", "modules.two.agents": "second"}
QUICK: dict[str, Any] = {"num_envs": 4, "evaluation.episodes": 0, "tracking.enabled": False}
OPTIONS: dict[str, Any] = {
    "ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 2},
    "dqn": {"batch_size": 16, "learning_starts": 64, "exploration_initial_eps": 0.05},
}


def trained(algorithm: str = "ppo", env: str = RELAY, **options: Any) -> rlplug.RunResult:
    chosen = {**QUICK, **OPTIONS[algorithm], **options}
    return rlplug.run(algorithm, env, steps=4096, options=chosen)


def weights(run: rlplug.RunResult) -> dict[str, Any]:
    """Tensors by module and name."""
    newest = max((run.folder / "checkpoints").glob("step-*"))
    return {
        f"{module_id}.{name}": tensor
        for module_id, state in read_tree(newest / "policy")["modules"].items()
        for name, tensor in state.items()
    }


def difference(here: dict[str, Any], there: dict[str, Any]) -> float:
    """The largest difference between weights."""
    assert here.keys() == there.keys()
    return max(float((value - there[name]).abs().max()) for name, value in here.items())


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", {"env.normalize_observation": True, "env.normalize_reward": True}),
        ("dqn", {}),
    ],
)
def test_two_learners_share_modules_whose_agents_come_and_go_and_go_on_exactly(
    algorithm: str, options: dict[str, Any], store_root: Path
) -> None:
    shared = {**options, **TWO, "scale.learners": 2}
    whole = trained(algorithm, **shared, **{"run.max_updates": 4})
    part = trained(algorithm, **shared, **{"run.max_updates": 2})
    before = weights(part)
    rest = rlplug.resume(part.run_id, options={"run.max_updates": 4}, allow_drift=True)
    assert whole.step == rest.step > part.step
    assert whole.metrics["rollout/two/length_mean"] == 3
    assert whole.metrics["rollout/two/return_mean"] == 20 + 30 + 40
    for module_id in ("one", "two"):
        assert difference(
            {name: one for name, one in weights(rest).items() if name.startswith(module_id)},
            {name: one for name, one in before.items() if name.startswith(module_id)},
        )
    assert difference(weights(whole), weights(rest)) == 0.0
