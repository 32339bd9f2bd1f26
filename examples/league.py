"""Tic-tac-toe by self-play against a league of frozen copies, to which a new one is added whenever
the player wins 55% of its last 100 episodes against them.

python examples/league.py
"""

from __future__ import annotations

import rlplug


def main() -> None:
    """Train, then let each side play against random moves."""
    run = rlplug.run(
        "ppo",
        "pettingzoo:classic/tictactoe_v3",
        steps=25_000,
        seed=1,
        options={
            "n_steps": 128,
            "batch_size": 256,
            "learning_rate": 1e-3,
            "gamma": 1.0,
            "league.win_rate": 0.55,
            "league.pool": 20,
            "league.self_play": 0.5,
            "tracking.enabled": False,
            "evaluation.episodes": 0,
        },
    )
    print(f"{run.metrics['league/copies']:.0f} copies")
    print(f"Elo rating {run.metrics['league/elo']:,.0f}, of the first copy 1,200")
    lost = 0
    for me, other in (("player_1", "player_2"), ("player_2", "player_1")):
        found = rlplug.evaluate(
            run.folder, checkpoint="last", episodes=200, opponents={other: "random"}
        )
        lost += (found.agent_returns[me] < 0).sum()
    print(f"not lost against random play: {1 - lost / 400:.1%}")


if __name__ == "__main__":
    main()
