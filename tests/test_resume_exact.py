"""A run that was cut off and resumed equals one that was not: weights, metrics, counters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import rlplug
from rlplug import AddOn
from rlplug.checkpoint import find_checkpoint, read_manifest
from rlplug.registry import ALGORITHM, Registry

pytestmark = pytest.mark.usefixtures("home")


class CutOff(AddOn):
    """Ends the process's part of a run by an error after an update at or after a step."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(None)
        self.at = at

    def save_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing is kept: a resumed run is not cut off again."""

    def update_finished(self, step: int) -> None:
        if self.at and step >= self.at:
            raise ArithmeticError("cut off")


def points(folder: Path) -> dict[tuple[int, str], list[float]]:
    """Step and name → the values in the journal, without times and what else runs here."""
    found: dict[tuple[int, str], list[float]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name, value in row["metrics"].items():
            if not name.startswith(("time/", "system/")):
                found.setdefault((row["step"], name), []).append(value)
    return found


def cut_off(algorithm: Any, env: Any, at: int, root: Path, **arguments: Any) -> str:
    """The id of a run that ends by an error after the update at a step."""
    before = set(root.glob("work/*"))
    with pytest.raises(ArithmeticError, match="cut off"):
        rlplug.run(algorithm, env, addons=[CutOff(at)], **arguments)
    (folder,) = set(root.glob("work/*")) - before
    return folder.name


def resumed_equals(
    home: Path,
    algorithm: str,
    env: str,
    *,
    steps: int,
    every: int,
    at: int,
    options: Mapping[str, Any],
) -> None:
    settings = {"tracking.enabled": False, "checkpoint.every": every, **options}
    arguments: dict[str, Any] = {"steps": steps, "seed": 3, "options": settings}
    whole = rlplug.run(algorithm, env, addons=[CutOff()], **arguments)
    run_id = cut_off(algorithm, env, at, home, **arguments)
    resumed = rlplug.resume(run_id, addons=[CutOff()])
    assert (resumed.run_id, resumed.status, resumed.step) == (run_id, "FINISHED", whole.step)
    there = resumed.module.state_dict()
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(there[name])), name
    expected, found = points(whole.folder), points(resumed.folder)
    assert len(expected) > 20
    # Compared as text: NaN equals NaN.
    assert {key: str(found.get(key, "missing")) for key in expected} == {
        key: str(values) for key, values in expected.items()
    }
    assert resumed.best == whole.best
    updates = [one.metrics["time/updates"] for one in (whole, resumed)]
    assert updates[0] == updates[1] > 0
    digests = [read_manifest(find_checkpoint(str(one.folder), "last")) for one in (whole, resumed)]
    assert digests[0].state_digest == digests[1].state_digest != ""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))
    return tmp_path


SHORT = {"evaluation.episodes": 1, "evaluation.every": 100, "learning_starts": 100}

CASES: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", 1024, 256, 650, {"n_steps": 64, "evaluation.episodes": 2}),
    "a2c": ("CartPole-v1", 600, 200, 450, {"sampling.num_envs": 2}),
    "dqn": ("CartPole-v1", 500, 150, 380, SHORT),
    "rainbow": (
        "CartPole-v1",
        *(300, 90, 220),
        {"sampling.num_envs": 3, **SHORT},
    ),
    "sac": ("Pendulum-v1", 260, 80, 180, {"net_arch": [16], **SHORT}),
    "td3": ("Pendulum-v1", 260, 80, 180, {"net_arch": [16], "policy_delay": 3, **SHORT}),
    "neural-linucb": ("", 300, 90, 230, {"refit_every": 50}),
}
"""Algorithm → environment, steps, steps between checkpoints, where it is cut off, options."""

SHIPPED = sorted(
    one.name
    for one in Registry.installed().of_kind(ALGORITHM)
    if one.package.split()[0]
    in {"rlplug-bandits", "rlplug-dqn", "rlplug-linucb", "rlplug-ppo", "rlplug-sac"}
)


ONE_OF_EACH_KIND = {"dqn", "neural-linucb", "ppo"}
"""The others keep what one of these keeps; checks and goldens of their states run for all."""


@pytest.mark.parametrize(
    "algorithm",
    [
        one if one in ONE_OF_EACH_KIND else pytest.param(one, marks=pytest.mark.long)
        for one in SHIPPED
    ],
)
def test_every_shipped_algorithm_resumes_exactly(home: Path, algorithm: str) -> None:
    env, steps, every, at, options = CASES.get(algorithm, ("", 200, 60, 130, {}))
    resumed_equals(home, algorithm, env, steps=steps, every=every, at=at, options=options)


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        pytest.param(
            *("ppo", "CartPole-v1", {"n_steps": 64, "sampling.num_envs": 16}),
            marks=pytest.mark.long,
        ),
        ("ppo", "CartPole-v1", {"n_steps": 128, "memory": "lstm", "truncated_bptt": 16}),
        (
            "ppo",
            "Pendulum-v1",
            {"n_steps": 128, "normalize_observation": True, "normalize_reward": True},
        ),
        pytest.param("ppo", "Blackjack-v1", {"n_steps": 128}, marks=pytest.mark.long),
        pytest.param(
            *("dqn", "Taxi-v4", {"learning_starts": 200, "train_freq": 4, "frame_stack": 1}),
            marks=pytest.mark.long,
        ),
        ("dqn", "CartPole-v1", {"learning_starts": 100, "buffer_size": 200, "frame_stack": 3}),
    ],
    ids=["native-vector", "recurrent", "normalized", "tuple", "discrete", "ring-that-wraps"],
)
def test_settings_that_keep_state_of_their_own_resume_exactly(
    home: Path, algorithm: str, env: str, options: dict[str, Any]
) -> None:
    few = {"evaluation.episodes": 0, **options}
    # An update of PPO takes up to 1,024 of them.
    steps, every, at = (2048, 512, 1100) if algorithm == "ppo" else (500, 120, 300)
    resumed_equals(home, algorithm, env, steps=steps, every=every, at=at, options=few)


def test_a_run_that_is_cut_off_twice_resumes_exactly(home: Path) -> None:
    settings = {"tracking.enabled": False, "checkpoint.every": 50, "learning_starts": 50}
    arguments: dict[str, Any] = {"steps": 250, "seed": 1, "options": settings}
    whole = rlplug.run("dqn", "CartPole-v1", addons=[CutOff()], **arguments)
    run_id = cut_off("dqn", "CartPole-v1", 110, home, **arguments)
    with pytest.raises(ArithmeticError, match="cut off"):
        rlplug.resume(run_id, addons=[CutOff(190)])
    resumed = rlplug.resume(run_id, addons=[CutOff()])
    for one, other in zip(whole.module.parameters(), resumed.module.parameters(), strict=True):
        assert torch.equal(one, other)
    twice = {key for key, values in points(resumed.folder).items() if len(values) > 1}
    assert (twice, points(whole.folder).keys() - points(resumed.folder)) == (set(), set())
