"""Do several agents learn? Each task with its threshold, over seeds.

    python benchmarks/learn_agents.py spread 0 1 2 3 4
    python benchmarks/learn_agents.py mappo 1 2 3
    python benchmarks/learn_agents.py meeting 0 1 2
    python benchmarks/learn_agents.py matrix 0 1 2
    python benchmarks/learn_agents.py tictactoe 0 1 2
    python benchmarks/learn_agents.py lottery 0 1 2
    python benchmarks/learn_agents.py twostep 0 1 2
    python benchmarks/learn_agents.py decomposed 0 1 2

It prints a line for each seed, and ends with 1 if fewer seeds pass than the task asks for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy

import rlplug
from examples.agent_tasks import MatrixGame, shortest_meeting

QUIET = {"tracking.enabled": False, "evaluation.episodes": 0, "sampling.num_envs": 8}

SPREAD_RANDOM = -26.3
"""Mean return of an agent that acts at random in simple_spread_v3, over 1,000 episodes."""

SPREAD_MARGIN = 10
"""By how much agents that have learned must be better."""


def spread(seed: int, *, central_critic: bool = False) -> tuple[str, bool]:
    """simple_spread_v3, three agents that share one PPO module, against random agents."""
    run = rlplug.run(
        "ppo",
        "pettingzoo:mpe/simple_spread_v3",
        steps=200_000,
        seed=seed,
        options={
            **QUIET,
            "sampling.num_envs": 16,
            "n_steps": 100,
            "batch_size": 1200,
            "n_epochs": 10,
            "learning_rate": 2e-3,
            "ent_coef": 0.005,
            "gamma": 0.95,
            "env.normalize_reward": True,
            "central_critic": central_critic,
        },
    )
    found = rlplug.evaluate(run.folder, episodes=100, checkpoint="last")
    value = found.metrics["eval/return_mean"]
    told = f"return {value:.2f}, random {SPREAD_RANDOM}, wanted {SPREAD_RANDOM + SPREAD_MARGIN}"
    return told, value >= SPREAD_RANDOM + SPREAD_MARGIN


def meeting(seed: int) -> tuple[str, bool]:
    """Two agents with one PPO module meet on a line as soon as they can."""
    run = rlplug.run(
        "ppo",
        "examples.agent_tasks:Meeting",
        steps=60_000,
        seed=seed,
        options={**QUIET, "n_steps": 64, "batch_size": 256, "learning_rate": 1e-3},
    )
    found = rlplug.evaluate(run.folder, episodes=500, checkpoint="last")
    value, best = found.metrics["eval/return_mean"], shortest_meeting()
    return f"return {value:.3f}, best {best:.3f}", abs(value - best) < 0.1


def matrix(seed: int) -> tuple[str, bool]:
    """Hawk and dove for a prize of 1 and a cost of 4: in equilibrium, 1 of 4 is a hawk."""
    run = rlplug.run(
        "ppo",
        partial(MatrixGame, payoffs=((-1.5, 1.0), (0.0, 0.5))),
        steps=100_000,
        seed=seed,
        options={
            **QUIET,
            "n_steps": 128,
            "batch_size": 512,
            "n_epochs": 4,
            "ent_coef": 0.0,
            "learning_rate": [[0, 3e-3], [100_000, 1e-4]],
        },
    )
    policy = rlplug.load(run.folder, checkpoint="last")
    rows = numpy.ones((10_000, 1), numpy.float32)
    chosen = policy.predict({"agent_0": rows}, deterministic=False)["agent_0"]
    hawks = float((chosen == 0).mean())
    return f"hawks: {hawks:.3f}, equilibrium 0.25", abs(hawks - 0.25) < 0.05


def tictactoe(seed: int) -> tuple[str, bool]:
    """Tic-tac-toe by self-play of one PPO module, then each side against random play."""
    run = rlplug.run(
        "ppo",
        "pettingzoo:classic/tictactoe_v3",
        steps=400_000,
        seed=seed,
        options={
            **QUIET,
            "n_steps": 256,
            "batch_size": 256,
            "ent_coef": 0.03,
            "gamma": 1.0,
            "learning_rate": [[0, 1e-3], [400_000, 1e-4]],
        },
    )
    lost = []
    for other in ("player_1", "player_2"):
        found = rlplug.evaluate(
            run.folder, episodes=500, checkpoint="last", opponents={other: "random"}
        )
        me = {"player_1": "player_2", "player_2": "player_1"}[other]
        lost.append(found.agent_returns[me])
    share = float((numpy.concatenate(lost) >= 0).mean())
    return f"not lost against random: {share:.1%} of 1,000", share >= 0.9


def lottery(seed: int) -> tuple[str, bool]:
    """Named bits are paid 1 and luck 10, which the state alone shows: PPO with either critic."""
    shares = {}
    for central in (True, False):
        run = rlplug.run(
            "ppo",
            "examples.agent_tasks:Lottery",
            steps=20_000,
            seed=seed,
            options={
                **QUIET,
                "central_critic": central,
                "n_steps": 64,
                "batch_size": 256,
                "n_epochs": 4,
                "learning_rate": 1e-3,
            },
        )
        shares[central] = both_right(rlplug.load(run.folder, checkpoint="last"))
    told = f"central critic {shares[True]:.0%}, own critic {shares[False]:.0%} of bits named"
    return told, shares[True] >= 0.95


def both_right(policy: Any) -> float:
    """How often both name their bits, drawing as in training."""
    bits = numpy.random.default_rng(0).integers(2, size=(2, 10_000))
    seen = dict(zip(("agent_0", "agent_1"), numpy.eye(2, dtype=numpy.float32)[bits], strict=True))
    chosen = policy.predict(seen, deterministic=False)
    return float(((chosen["agent_0"] == bits[0]) & (chosen["agent_1"] == bits[1])).mean())


def two_step(seed: int) -> tuple[str, bool]:
    """The game of two steps: a sum cannot tell that 8 can be reached, a mixing network can."""
    returns = {}
    for name, algorithm, more in (
        ("qmix", "vdn", {"mixing": "qmix"}),
        ("vdn", "vdn", {}),
        ("dqn", "dqn", {}),
    ):
        run = rlplug.run(
            algorithm,
            "examples.agent_tasks:TwoStep",
            steps=20_000,
            seed=seed,
            options={
                **QUIET,
                **more,
                # All actions at random, as in the paper: what is learned is the optimum.
                "exploration_final_eps": 1.0,
                "learning_starts": 500,
                "buffer_size": 5_000,
                "batch_size": 64,
                "gamma": 0.99,
                "net_arch": [64],
                "train_freq": 1,
                "gradient_steps": 2,
                "target_update_interval": 400,
            },
        )
        found = rlplug.evaluate(run.folder, episodes=4, checkpoint="last")
        returns[name] = found.metrics["eval/return_mean"]
    told = ", ".join(f"{name} {value:.0f}" for name, value in returns.items())
    return f"{told}, best 8", returns["qmix"] == 8


def decomposed(seed: int) -> tuple[str, bool]:
    """The meeting of two agents from a replay buffer: VDN and QMIX beside independent DQN."""
    returns, best = {}, shortest_meeting()
    for name, algorithm, more in (
        ("vdn", "vdn", {}),
        ("qmix", "vdn", {"mixing": "qmix"}),
        ("dqn", "dqn", {}),
    ):
        run = rlplug.run(
            algorithm,
            "examples.agent_tasks:Meeting",
            steps=60_000,
            seed=seed,
            options={
                **QUIET,
                **more,
                "double": True,
                "learning_rate": [[0, 1e-3], [60_000, 1e-5]],
                "exploration_final_eps": 0.02,
                "tau": 0.01,
            },
        )
        found = rlplug.evaluate(run.folder, episodes=500, checkpoint="last")
        returns[name] = found.metrics["eval/return_mean"]
    told = ", ".join(f"{name} {value:.2f}" for name, value in returns.items())
    return f"{told}, best {best:.2f}", abs(returns["vdn"] - best) < 0.1


TASKS: dict[str, tuple[Callable[[int], tuple[str, bool]], Callable[[int], int]]] = {
    "spread": (spread, lambda seeds: seeds - 1 if seeds >= 5 else seeds),
    "mappo": (partial(spread, central_critic=True), lambda seeds: seeds),
    "meeting": (meeting, lambda seeds: seeds),
    "matrix": (matrix, lambda seeds: seeds),
    "tictactoe": (tictactoe, lambda seeds: seeds),
    "lottery": (lottery, lambda seeds: seeds),
    "twostep": (two_step, lambda seeds: seeds),
    "decomposed": (decomposed, lambda seeds: seeds),
}


def main(task: str, *seeds: str) -> Any:
    learn, wanted = TASKS[task]
    passed = 0
    for seed in map(int, seeds or ("0", "1", "2")):
        told, fine = learn(seed)
        passed += fine
        print(f"{task} seed {seed}: {told}: {'passed' if fine else 'FAILED'}", flush=True)
    count = len(seeds or "012")
    print(f"{task}: {passed} of {count}", flush=True)
    return 0 if passed >= wanted(count) else 1


if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1] not in TASKS:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
