"""What the parts of gpu.py share: learners with batches, timings, and the loop of a run."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import attrs

CART_POLE = "examples.tensor_tasks:TensorCartPole"
PENDULUM = "examples.tensor_tasks:TensorPendulum"


@attrs.frozen
class Setting:
    """Where and how much to measure."""

    device: str
    short: bool

    def steps(self, steps: int) -> int:
        """Fewer where nothing is judged."""
        return max(steps // 40, 2000) if self.short else steps

    def wait(self) -> None:
        """Wait for the device."""
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()


def learner_and_batch(setting: Setting, algorithm: str, rows: int, **options: Any) -> Any:
    """A learner on the device, and a batch of so many rows there."""
    import torch
    from gymnasium import spaces

    from rlplug import Batch
    from rlplug.runs.build_learner import build_learner

    chosen = {"compute.device": setting.device, **options}
    space, choices = spaces.Box(-1, 1, (8,)), spaces.Discrete(4)
    learner = build_learner(algorithm, space, choices, options=chosen, seed=1)
    generator = torch.Generator().manual_seed(0)
    seen = torch.randn(rows, 8, generator=generator)
    columns: dict[str, Any] = {
        "observations": seen,
        "actions": torch.randint(4, (rows,), generator=generator),
        "rewards": torch.randn(rows, generator=generator),
        "terminated": torch.zeros(rows, dtype=torch.bool),
        "truncated": torch.zeros(rows, dtype=torch.bool),
    }
    if algorithm == "ppo":
        columns["fragments"] = torch.tensor([[0, rows]])
        columns["final_observations"] = seen[:1]
    else:
        columns["next_observations"] = seen.roll(1, 0)
    return learner, Batch(columns).to(torch.device(setting.device))


def seconds_per_minibatch(
    setting: Setting, algorithm: str, size: int, *, number: int = 0, **options: Any
) -> float:
    """The median of some updates, in seconds for each of their minibatches."""
    number = number or (20 if setting.short else 200)
    # PPO prepares a rollout once for many minibatches; DQN prepares each.
    together = 16 if algorithm == "ppo" else 1
    learner, batch = learner_and_batch(setting, algorithm, size * together, **options)
    step = itertools.count(1)

    def update() -> None:
        learner.update({"default": batch}, timestep=next(step), num_iters=1, minibatch_size=size)

    for _ in range(3 if setting.short else 10):
        update()
    times = []
    for _ in range(max(number // together, 5)):
        setting.wait()
        began = time.perf_counter()
        update()
        setting.wait()
        times.append((time.perf_counter() - began) / together)
    return statistics.median(times)


def loop(setting: Setting, algorithm: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Collections of a run, and the updates that they lead to."""
    import torch

    from rlplug.config.sections import EnvSection
    from rlplug.envs import make_environments
    from rlplug.feeds import FeedSetting, Replay, Rollout
    from rlplug.runs.build_learner import build_learner
    from rlplug.sampling import Collector

    made = make_environments(CART_POLE, 64, EnvSection(), tensors=True, device=setting.device)
    learner = build_learner(
        algorithm,
        made.observation_space,
        made.action_space,
        options={"compute.device": str(made.device)},
    )
    described: Any = Rollout(n_steps=32, batch_size=512, n_epochs=10)
    if algorithm == "dqn":
        described = Replay(batch_size=64, learning_starts=0, gradient_steps=4, buffer_size=50_000)
    feed = described.open(
        FeedSetting(
            observation_space=made.observation_space,
            action_space=made.action_space,
            num_envs=64,
            steps=10**6,
            seed=0,
            device=torch.device(str(made.device)),
        )
    )
    sampler = Collector(
        made, learner.modules, {"default": feed}, seed=0, steps=feed.steps_per_collect
    )
    sampler.start()
    step = 0

    def collect() -> Any:
        nonlocal step
        experience = sampler.collect(step)
        step += experience.count
        return experience

    def update(experience: Any) -> None:
        for work in feed.take(experience, step):
            learner.update(
                {"default": work.batch},
                timestep=step,
                num_iters=work.num_iters,
                minibatch_size=work.minibatch_size,
            )

    return collect, update
