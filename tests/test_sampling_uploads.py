"""Rollouts that are copied in pieces while environments step equal those that are not."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug import Acted, ActInput, Module
from rlplug.batch.nested import leaves, to_arrays
from rlplug.config.sections import EnvSection
from rlplug.envs import make_environments
from rlplug.feeds import FeedSetting, Rollout
from tests.collecting import collector

CPU = torch.device("cpu")


class Masks(gymnasium.Env[Any, Any]):
    """Observations are a Dict; masks come from the fifth step on, while nothing has ended."""

    observation_space = spaces.Dict({"at": spaces.Box(0, 1e6, (2,)), "even": spaces.Discrete(2)})
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return self.seen(), {}

    def seen(self) -> Any:
        return {"at": numpy.full(2, self.taken, numpy.float32), "even": self.taken % 2}

    def step(self, action: Any) -> Any:
        self.taken += 1
        mask = {"action_mask": numpy.array([1, self.taken % 2, 1], numpy.int8)}
        infos = mask if self.taken >= 5 else {}
        return self.seen(), float(action), self.taken == 23, False, infos


class Extra(Module):
    def forward_exploration(self, act: ActInput) -> Acted:
        at = act.observations["at"] if isinstance(act.observations, dict) else act.observations
        n = len(at)
        return Acted(act.random.integers(0, 2, n), extras={"noise": act.random.random((n, 2))})


@pytest.mark.parametrize("env", [Masks, "CartPole-v1"])
@pytest.mark.parametrize("vectorization", ["sync", "native"])
@pytest.mark.parametrize("steps", [7, 32])
def test_uploaded_rollouts_have_the_same_rows(env: Any, vectorization: str, steps: int) -> None:
    if env is Masks and vectorization == "native":
        pytest.skip("it has no vector form")
    batches: list[list[Any]] = []
    for upload_to in (None, CPU):
        made = make_environments(env, 3, EnvSection(), vectorization=vectorization)
        sampler = collector(
            made, Extra(), seed=4, steps=steps, by_environment=True, upload_to=upload_to
        )
        feed = Rollout(n_steps=steps, batch_size=0).open(
            FeedSetting(
                observation_space=made.observation_space,
                action_space=made.action_space,
                num_envs=3,
                steps=1000,
                seed=0,
            )
        )
        sampler.start()
        taken = []
        for _ in range(4):
            (work,) = feed.take(sampler.collect(0), 0)
            columns = work.batch.columns
            if upload_to is not None and vectorization == "sync":
                assert all(isinstance(one, Tensor) for one in leaves(columns["observations"]))
                assert isinstance(columns["noise"], Tensor)
            taken.append(
                {
                    name: [numpy.array(to_arrays(x)) for x in leaves(one)]
                    for name, one in columns.items()
                }
            )
        batches.append(taken)
    for one, other in zip(*batches, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            for left, right in zip(one[name], other[name], strict=True):
                numpy.testing.assert_array_equal(left, right, name)


def test_every_row_is_copied_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlplug.sampling.uploads import Uploads

    copied: list[Any] = []
    really = Uploads._copy

    def copy(self: Any, grid: Any, pinned: Any, uploaded: Any, rows: slice) -> None:
        copied.append((rows.start, rows.stop))
        really(self, grid, pinned, uploaded, rows)

    monkeypatch.setattr(Uploads, "_copy", copy)
    made = make_environments("CartPole-v1", 2, EnvSection(), vectorization="sync")
    sampler = collector(made, Extra(), seed=0, steps=20, by_environment=True, upload_to=CPU)
    sampler.start()
    sampler.collect(0)
    pieces = sorted(set(copied))
    # An eighth of 20 steps at a time, rounded up; the last call finds nothing left.
    assert [piece for piece in pieces if piece[0] < piece[1]] == [
        (at, min(at + 3, 20)) for at in range(0, 20, 3)
    ]
