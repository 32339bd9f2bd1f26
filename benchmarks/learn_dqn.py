"""Whether DQN learns what it should: CartPole-v1 in 50,000 steps, for seeds fixed beforehand.

python benchmarks/learn_dqn.py                    seeds 1 to 5 with the preset `cartpole`
python benchmarks/learn_dqn.py --set double=true  the same with other options

The best checkpoint by evaluation plays 100 fresh greedy episodes; at least four of five seeds must
come to a mean return of 450.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from typing import Any

ENOUGH = 450.0
EPISODES = 100
FRESH = 10_000
"""Added to the seed: the episodes of the last evaluation are no others' episodes."""


def main() -> None:
    """Train every seed, let the best checkpoint play, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--algorithm", default="dqn")
    parser.add_argument("--preset", default="cartpole")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    said = parser.parse_args()
    import tomllib

    options: dict[str, Any] = {"run.preset": said.preset, "tracking.enabled": False}
    for one in said.set:
        key, _, value = one.partition("=")
        options[key] = tomllib.loads(f"value = {value}")["value"]
    print(f"{said.algorithm}, preset {said.preset}{''.join(f', {one}' for one in said.set)}")
    print(
        f"{'seed':>6}{'best at':>10}{'mean of 100':>13}{'lowest':>8}{'at the end':>12}{'CPU s':>8}"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        means = [learned(said.algorithm, seed, options) for seed in said.seeds]
    reached = sum(mean >= ENOUGH for mean in means)
    wanted = -(-4 * len(means) // 5)
    verdict = "yes" if reached >= wanted else "NO"
    print(f"{reached} of {len(means)} seeds reach {ENOUGH:g}, {wanted} wanted: {verdict}")


def learned(algorithm: str, seed: int, options: dict[str, Any]) -> float:
    """The mean return of the best checkpoint of one run."""
    from rlplug import run
    from rlplug.runs.evaluate import evaluate

    began = time.process_time()
    result = run(algorithm, seed=seed, options=options)
    spent = time.process_time() - began
    last = result.metrics["eval/return_mean"]
    played = evaluate(str(result.folder), checkpoint="best", episodes=EPISODES, seed=seed + FRESH)
    mean, lowest = played.metrics["eval/return_mean"], played.metrics["eval/return_min"]
    line = f"{seed:>6}{played.step:>10,}{mean:>13.1f}{lowest:>8.0f}"
    print(f"{line}{last:>12.1f}{spent:>8.1f}", flush=True)
    return mean


if __name__ == "__main__":
    main()
