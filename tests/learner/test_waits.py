"""A learner on a GPU reads no number per minibatch; the CPU, where reading is free, stands in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from rlplug import Batch
from rlplug.learner import Learner
from rlplug.learner.device import Precision
from rlplug.runs.build_learner import build_learner
from tests.test_tensor_sampling import reads_counted

SEEN, CHOICES = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
ROWS = 64


def learner_as_on_a_gpu(algorithm: str, **options: Any) -> Learner:
    """Engine and metrics as on another device: torch, and what the device found is not read."""
    learner = build_learner(
        algorithm, SEEN, CHOICES, options={"compute.arrays": "off", **options}, seed=1
    )
    learner.precision.reads = False
    return learner


def batch_for(algorithm: str) -> Batch:
    generator = torch.Generator().manual_seed(0)
    seen = torch.randn(ROWS, 4, generator=generator)
    columns = {
        "observations": seen,
        "actions": torch.randint(2, (ROWS,), generator=generator),
        "rewards": torch.randn(ROWS, generator=generator),
        "terminated": torch.zeros(ROWS, dtype=torch.bool),
        "truncated": torch.zeros(ROWS, dtype=torch.bool),
        "next_observations": seen.roll(1, 0),
    }
    if algorithm in ("ppo", "a2c"):
        columns["fragments"] = torch.tensor([[0, 40], [40, ROWS]])
        columns["final_observations"] = seen[:2]
        del columns["next_observations"]
    return Batch(columns)


def reads_of_update(learner: Learner, batch: Batch, size: int, step: int) -> list[str]:
    with reads_counted() as found:
        learner.update({"default": batch}, timestep=step, num_iters=2, minibatch_size=size)
    return list(found)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "dqn"])
def test_an_update_reads_as_much_with_many_minibatches_as_with_one(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Norms are NumPy's on the CPU alone.
    monkeypatch.setattr("rlplug.optim.clipping._is_numpys", lambda gradient: False)
    learner, batch = learner_as_on_a_gpu(algorithm), batch_for(algorithm)
    # The first update also makes the state of the optimizer, and settles engines.
    reads_of_update(learner, batch, 0, 1)
    one = reads_of_update(learner, batch, 0, 2)
    many = reads_of_update(learner, batch, 4, 3)
    assert many == one
    if algorithm == "dqn":
        # What an update reads would be read in every step.
        assert one == []


def test_the_scale_of_fp16_is_read_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlplug.config.sections import ComputeSection
    from rlplug.errors import RunFailedError

    precision = Precision(ComputeSection(), torch.device("cpu"))
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    precision.scaler.scale(torch.ones(()))
    with reads_counted() as found:
        assert isinstance(precision.unscaling, torch.Tensor)
    assert found == []
    assert float(precision.unscaling) == 0.125
    precision.reads = False  # as on a GPU
    with reads_counted() as found:
        for _ in range(99):
            precision.update_finished()
    assert found == []
    precision.scaler._scale.fill_(1e-6)
    with pytest.raises(RunFailedError, match="fell to 1e-06"):
        precision.update_finished()
