"""What people write of the literature trains on arrays as it does in torch."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces

import rlplug
from rlplug import Batch, build_learner
from tests.field_algorithms import ALGORITHMS, DISCRETE, Reinforce

SEEN = spaces.Box(-1, 1, (8,), numpy.float32)
ROWS = 32


SHIPPED: list[tuple[str, Any, dict[str, Any]]] = [
    *(
        ("dqn", spaces.Discrete(4), options)
        for options in (
            {"dueling": True, "loss": "mse"},
            {"double": True, "prioritized": True},
            {"distributional": True, "v_min": -4.0, "v_max": 4.0},
            {"quantile": True, "n_quantiles": 16, "double": True},
        )
    ),
    ("sac", spaces.Box(-1, 1, (3,), numpy.float32), {"net_arch": [16, 8]}),
    ("sac", spaces.Discrete(4), {"ent_coef": 0.3}),
    ("td3", spaces.Box(-2, 6, (3,), numpy.float32), {"net_arch": [16, 8], "policy_delay": 1}),
    *(
        ("ppo", spaces.Discrete(4), {"normalize_advantage": False, **options})
        for options in ({}, {"kl_coef": 0.2}, {"clip_range_vf": 0.3, "ent_coef": 0.02})
    ),
    ("ppo", spaces.Box(-1, 1, (3,), numpy.float32), {"squash": True}),
    ("ppo", spaces.Box(-1, 1, (3,), numpy.float32), {"state_dependent_std": True}),
    ("a2c", spaces.Discrete(4), {"ent_coef": 0.02}),
]


def rows(seed: int, *, discrete: bool) -> Batch:
    random = numpy.random.default_rng(seed)
    actions = random.integers(0, 4, ROWS) if discrete else random.uniform(-1, 1, (ROWS, 3))
    columns: dict[str, Any] = {
        "observations": random.standard_normal((ROWS, 8)),
        "next_observations": random.standard_normal((ROWS, 8)),
        "actions": actions,
        "rewards": random.standard_normal(ROWS),
        "terminated": random.random(ROWS) < 0.1,
        "truncated": numpy.zeros(ROWS, bool),
        "fragments": numpy.array([[0, 20], [20, ROWS]]),
        "final_observations": random.standard_normal((2, 8)),
    }
    return Batch({n: c.astype("f") if c.dtype == float else c for n, c in columns.items()})


@pytest.mark.parametrize(
    ("algorithm", "space", "options"),
    [
        *(
            (
                kind,
                SHIPPED[0][1] if kind in DISCRETE else spaces.Box(-1, 1, (3,), numpy.float32),
                {},
            )
            for kind in ALGORITHMS
        ),
        *SHIPPED,
    ],
)
def test_it_runs_on_arrays_and_agrees_with_torch(
    algorithm: Any, space: Any, options: dict[str, Any]
) -> None:
    mine, theirs = (
        build_learner(algorithm, SEEN, space, options={**options, "compute.arrays": arrays}, seed=0)
        for arrays in ("auto", "off")
    )
    for step in range(4):
        batch = rows(step, discrete=isinstance(space, spaces.Discrete))
        found = mine.update({"default": batch}, timestep=step)["default"]
        expected = theirs.update({"default": batch}, timestep=step)["default"]
        assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-3, abs=1e-4)
    assert mine.engines["default"][0] == "arrays", mine.engines["default"]
    assert theirs.engines["default"][0] == "torch"
    weights = theirs.modules["default"].state_dict()
    for name, weight in mine.modules["default"].state_dict().items():
        torch.testing.assert_close(weight, weights[name], atol=2e-3, rtol=1e-3)


def test_it_is_a_plugin_that_a_run_trains() -> None:
    options = {"tracking.enabled": False, "evaluation.episodes": 0}
    result = rlplug.run(Reinforce, "CartPole-v1", steps=200, seed=1, options=options)
    assert result.engine.startswith("arrays")
