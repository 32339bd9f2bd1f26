"""Do agents learn in a league of frozen copies? Each task with its threshold, over seeds.

    python benchmarks/learn_league.py tictactoe 1 2 3
    python benchmarks/learn_league.py matrix 1 2 3

It prints a line for each seed, and ends with 1 if one of them fails.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy

import rlplug
from rlplug.serving import AgentPolicy

QUIET = {"tracking.enabled": False, "evaluation.episodes": 0}


def tictactoe(seed: int) -> tuple[str, bool]:
    """Half of the episodes against copies of all ages; then each side against random play."""
    run = rlplug.run(
        "ppo",
        "pettingzoo:classic/tictactoe_v3",
        steps=400_000,
        seed=seed,
        options={
            **QUIET,
            "sampling.num_envs": 8,
            "n_steps": 256,
            "batch_size": 256,
            "ent_coef": 0.03,
            "gamma": 1.0,
            "learning_rate": [[0, 1e-3], [400_000, 1e-4]],
            "league.every": 20_000,
            "league.pool": 20,
            "league.self_play": 0.5,
        },
    )
    told, returns = [], []
    for me, other in (("player_1", "player_2"), ("player_2", "player_1")):
        found = rlplug.evaluate(
            run.folder, episodes=500, checkpoint="last", opponents={other: "random"}
        )
        returns.append(found.agent_returns[me])
        told.append(f"{me} {(returns[-1] >= 0).mean():.1%}")
    share = float((numpy.concatenate(returns) >= 0).mean())
    copies = run.metrics["league/copies"]
    text = f"not lost against random: {share:.1%} of 1,000 ({', '.join(told)}), {copies:.0f} copies"
    return text, share >= 0.9


def matrix(seed: int) -> tuple[str, bool]:
    """Rock, paper, scissors with two modules: what the copies do on average is the equilibrium."""
    run = rlplug.run(
        "ppo",
        "examples.agent_tasks:MatrixGame",
        steps=200_000,
        seed=seed,
        options={
            **QUIET,
            "modules.one.agents": "agent_0",
            "modules.two.agents": "agent_1",
            # Many games at once: policies go round, and noise of small collections adds up.
            "sampling.num_envs": 64,
            "n_steps": 32,
            "batch_size": 2048,
            "n_epochs": 4,
            "gamma": 1.0,
            "ent_coef": 0.3,
            "learning_rate": 3e-3,
            "league.every": 2048,
            "league.pool": 1000,
        },
    )
    seen = numpy.ones((1, 1), numpy.float32)
    copies, last = rlplug.load_league(run.folder), rlplug.load(run.folder, checkpoint="last")
    assert isinstance(last, AgentPolicy)
    told, apart = [], []
    for agent in ("agent_0", "agent_1"):
        (now,) = last.agents[agent].probabilities(seen, deterministic=False)
        each = [one.agents[agent].probabilities(seen, deterministic=False)[0] for one in copies]
        mean = numpy.mean(each, 0)
        apart.append(abs(mean - 1 / 3).max())
        told.append(f"{agent} {_shown(mean)}, its last weights {_shown(now)}")
    return f"{len(copies)} copies: {'; '.join(told)}", max(apart) < 0.05


def _shown(shares: Any) -> str:
    return " ".join(f"{share:.3f}" for share in shares)


TASKS = {"tictactoe": tictactoe, "matrix": matrix}


def main(task: str, *seeds: str) -> Any:
    chosen = seeds or ("1", "2", "3")
    passed = 0
    for seed in map(int, chosen):
        told, fine = TASKS[task](seed)
        passed += fine
        print(f"{task} seed {seed}: {told}: {'passed' if fine else 'FAILED'}", flush=True)
    print(f"{task}: {passed} of {len(chosen)}", flush=True)
    return 0 if passed == len(chosen) else 1


if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1] not in TASKS:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
