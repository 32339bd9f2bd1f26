"""Goldens: what short runs did when they were last found right, one file per path of the library.

`tests/goldens/NAME.json` tells of one run, or of a few that belong together: the experience as it
was recorded, the batches that were learned from, the weights (of bandits: how they score some
contexts), and the reported metrics. What changes the arithmetic of a path does not fit its file:

    python tests/test_goldens.py                 which paths changed, and what in them
    python tests/test_goldens.py ppo dqn         these only
    python tests/test_goldens.py --write ppo     make it anew, for a change that is meant

**Rounding.** Integers, booleans and actions have to be equal: their digests are compared. Of
numbers with a fraction no digest is taken, however rounded: other vector instructions and BLAS
threads add up in another order, and a number at the border of rounding would change it. They are
told by their mean, their mean size, a projection onto fixed cosines (it sees every value, and their
order), and the first and last value, within `TOLERANCE` of the mean size of the values. Runs are
short, so that a difference in the last digit cannot grow until an action flips.

**What is looked at** are public doors alone: results, histories, recordings, and what an add-on is
shown. Most runs are made twice: once without an add-on, as users run them (weights, metrics,
engine), once beside an add-on that looks at every batch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import attrs
import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pyarrow import parquet
from rlplug_ppo import PPO

import rlplug
from rlplug import ActInput, AddOn, hookimpl

FOLDER = Path(__file__).parent / "goldens"
ROOT = Path(__file__).parents[1]

TOLERANCE = 1e-4
"""Of the mean size of what is compared."""

SMALLEST = 0.01
"""The mean size from which on values count: a KL divergence near 0 is all rounding."""

Tree = dict[str, Any]

QUICK: dict[str, Any] = {"tracking.enabled": False, "evaluation.episodes": 0}


# -- summaries and their comparison ----------------------------------------------------------------


def summary(values: Any) -> Tree:
    """What a golden tells of an array: a digest, or some numbers where it has fractions."""
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
    array = numpy.asarray(array)
    kind = f"{array.dtype} {'x'.join(map(str, array.shape)) or 'scalar'}"
    flat = array.reshape(-1)
    if flat.dtype.kind not in "fc":
        content = numpy.ascontiguousarray(flat).tobytes()
        if flat.dtype.kind in "OU":
            content = json.dumps(flat.tolist()).encode()
        digest = hashlib.sha256(content).hexdigest()[:12]
        told = {"first": flat[:4].tolist()} if flat.dtype.kind in "iub" else {}
        return {"kind": kind, "digest": digest, **told}
    finite = numpy.isfinite(flat)
    found: Tree = {"kind": kind}
    if not finite.all():
        found["not_finite"] = int((~finite).sum())
    x = flat[finite].astype(numpy.float64)
    if not len(x):
        return found
    cosines = numpy.cos(numpy.arange(1, len(x) + 1) * math.sqrt(2.0))
    numbers = {
        "mean": x.mean(),
        "size": numpy.abs(x).mean(),
        "mixed": (x * cosines).sum() / math.sqrt(len(x)),
        "first": x[0],
        "last": x[-1],
    }
    return {**found, **{name: float(f"{number:.7g}") for name, number in numbers.items()}}


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays in nested mappings and tuples, by their dotted names."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(tree, tuple | list):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{name}.{index}" if name else str(index))
    elif tree is not None:
        yield name, tree


def summaries(tree: Any) -> Tree:
    """The summary of every array in a tree."""
    return {name: summary(values) for name, values in leaves(tree)}


def differences(expected: Tree, found: Tree) -> list[str]:
    """What differs, one line each: `weights policy.bias: mean 0.1 → 0.2`."""
    lines: list[str] = []
    for section in {**expected, **found}:
        before, after = expected.get(section), found.get(section)
        if before is None or after is None:
            lines.append(f"{section}: {'is new' if before is None else 'is gone'}")
        elif section == "run":
            for name in {**before, **after}:
                if before.get(name) != after.get(name):
                    lines.append(f"run {name}: {before.get(name)} → {after.get(name)}")
        else:
            if section == "weights" and before.keys() != after.keys():
                before, after = by_value(before), by_value(after)
            for name in {**before, **after}:
                here, there = before.get(name), after.get(name)
                if here is None or there is None:
                    lines.append(f"{section} {name}: {'is new' if here is None else 'is gone'}")
                elif told := difference(here, there):
                    lines.append(f"{section} {name}: {told}")
    return lines


def difference(before: Tree, after: Tree) -> str:
    """How two summaries differ; empty if they do not, within the tolerance."""
    size = before.get("size", 0.0)
    for name in {**before, **after}:
        one, other = before.get(name), after.get(name)
        if isinstance(one, float) and isinstance(other, float):
            alike = abs(one - other) <= TOLERANCE * max(size, abs(one), SMALLEST)
        else:
            alike = one == other
        if alike:
            continue
        return f"{name} {one} → {other}"
    return ""


def by_value(weights: Tree) -> Tree:
    """Weights that were renamed: without their names, in the order of what they are."""
    ordered = sorted(weights.values(), key=lambda one: (one["kind"], one.get("mixed", 0.0)))
    return {f"number {index}": one for index, one in enumerate(ordered)}


def written(golden: Tree) -> str:
    """A golden as a file has it: one line for each array."""
    sections = []
    for section, entries in golden.items():
        lines = ",\n".join(
            f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items()
        )
        sections.append(f"  {json.dumps(section)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


# -- what is seen of a run -------------------------------------------------------------------------


class Watched:
    """The columns of all batches, one after the other, by module."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}
        self.updates = 0

    def see(self, module_id: str, batch: Any) -> None:
        self.updates += 1
        for column in batch:
            for name, values in leaves(batch[column], f"{module_id}.{column}"):
                self.columns.setdefault(name, []).append(values.detach().cpu().numpy().copy())

    def told(self) -> Tree:
        # Columns of rows follow each other; the pieces of a rollout may be of several lengths.
        joined = {name: numpy.concatenate(parts) for name, parts in self.columns.items()}
        return {name: summary(values) for name, values in sorted(joined.items())}


class Watch(AddOn):
    """Shows every batch, as it was learned from, to `Watched`."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(None)
        # In a closure: the learner would copy what an attribute holds.
        self._see = watched.see

    @hookimpl
    def additional_update(self, module_id: str, batch: Any) -> None:
        self._see(module_id, batch)

    @hookimpl
    def save_state(self) -> Tree:
        return {}

    @hookimpl
    def load_state(self, state: Any) -> None:
        """Nothing is kept."""


def weights(result: Any) -> Tree:
    """Weights, buffers and counters of the trained module."""
    return summaries(dict(sorted(result.module.state_dict().items())))


def scores(result: Any) -> Tree:
    """What a bandit makes of some contexts, arm by arm: how it keeps that is its own business."""
    policy = rlplug.load(result.folder)
    space: Any = policy.observation_space
    count = int(cast("spaces.Discrete", policy.action_space).n)
    space.seed(7)
    rows = [space.sample() for _ in range(8)]
    observations: Any = (
        {name: numpy.stack([row[name] for row in rows]) for name in space.spaces}
        if isinstance(space, spaces.Dict)
        else numpy.stack(rows)
    )
    if isinstance(observations, dict) and "action_mask" in observations:
        observations["action_mask"] = numpy.ones((8, count), numpy.int8)
    module = result.module
    by_arm: dict[str, list[Any]] = {}
    for arm in range(count):
        mask = numpy.zeros((8, count), bool)
        mask[:, arm] = True
        act = ActInput(observations, action_mask=mask, random=numpy.random.default_rng(arm))
        for column, values in module.forward_exploration(act).extras.items():
            by_arm.setdefault(column, []).append(numpy.asarray(values))
    act = ActInput(observations, random=numpy.random.default_rng(1), wants_log_prob=True)
    acted = module.forward_exploration(act)
    found: Tree = {"of each arm": {name: numpy.stack(parts) for name, parts in by_arm.items()}}
    found["exploring"] = {"actions": acted.actions, "log_prob": acted.extras["log_prob"]}
    found["greedy"] = module.forward_inference(ActInput(observations)).actions
    return summaries(found)


def metrics(result: Any) -> Tree:
    """The history of each metric but times."""
    history = {
        name: [numpy.asarray(steps).astype(numpy.int64), numpy.asarray(values, numpy.float64)]
        for name, (steps, values) in sorted(result.history().items())
        if not name.startswith(("time/", "system/"))
    }
    return {
        name: {**summary(values), "steps": summary(steps)["digest"]}
        for name, (steps, values) in history.items()
        if len(values)
    }


def recorded(folder: Path) -> Tree:
    """The columns of a recording."""
    table = parquet.read_table(sorted(folder.glob("*.parquet")))
    columns = {name: numpy.array(table[name].to_pylist()) for name in table.column_names}
    return {name: summary(values) for name, values in columns.items()}


# -- environments ----------------------------------------------------------------------------------


class Walk(gymnasium.Env[Any, Any]):
    """A walk on a line with noise; it ends outside, and is truncated after 12 steps.

    `masked`: the three actions are allowed by turns; `nested`: observations are a mapping.
    """

    def __init__(self, masked: bool = False, nested: bool = False) -> None:
        self.masked, self.nested = masked, nested
        self.action_space = spaces.Discrete(3)
        position = spaces.Box(-4, 4, (2,), numpy.float32)
        self.observation_space: spaces.Space[Any] = position
        if nested:
            self.observation_space = spaces.Dict({"place": position, "kind": spaces.Discrete(3)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Tree]:
        super().reset(seed=seed)
        self.place, self.time = float(self.np_random.uniform(-1, 1)), 0
        return self._seen(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Tree]:
        assert not self.masked or self._info()["action_mask"][action]
        self.time += 1
        self.place += int(action) - 1 + float(self.np_random.normal(0, 0.3))
        ended = abs(self.place) > 2.5
        reward = 1 - abs(self.place) + 0.5 * int(action)
        return self._seen(), reward, ended, self.time == 12 and not ended, self._info()

    def _seen(self) -> Any:
        place = numpy.array([max(-4, min(4, self.place)), self.time / 12], numpy.float32)
        return {"place": place, "kind": self.time % 3} if self.nested else place

    def _info(self) -> Tree:
        mask = numpy.ones(3, bool)
        mask[self.time % 3] = False
        return {"action_mask": mask} if self.masked else {}


class Pair(ParallelEnv[str, Any, Any]):  # type: ignore[misc] # untyped in PettingZoo
    """`left` and `right` are to meet; `left` leaves earlier, and both are truncated at the end."""

    metadata: Tree = {"name": "pair"}

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-20, 20, (3,), numpy.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.random = numpy.random.default_rng(seed)
        self.agents, self.time = list(self.possible_agents), 0
        self.places = dict(zip(self.agents, self.random.uniform(-3, 3, 2).tolist(), strict=True))
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        acted, self.time = list(self.agents), self.time + 1
        for agent in acted:
            self.places[agent] += int(actions[agent]) - 1 + float(self.random.normal(0, 0.1))
        apart = abs(self.places["left"] - self.places["right"])
        rewards = {agent: -apart - (agent == "right") * 0.5 for agent in acted}
        met = apart < 0.5
        terminated = {agent: met or (agent == "left" and self.time == 7) for agent in acted}
        truncated = {agent: self.time == 10 and not terminated[agent] for agent in acted}
        seen = {agent: self._seen()[agent] for agent in acted}
        self.agents = [one for one in acted if not (terminated[one] or truncated[one])]
        return seen, rewards, terminated, truncated, {agent: {} for agent in acted}

    def _seen(self) -> Tree:
        own = {"left": ("left", "right"), "right": ("right", "left")}
        return {
            agent: numpy.array([*(self.places[one] for one in order), self.time / 10], "f4")
            for agent, order in own.items()
        }


class TwoOptimizers(PPO):
    """PPO whose policy and value function have an optimizer each."""

    @hookimpl
    def configure_optimizers_for_module(self, module: Any, config: Any) -> Any:
        named = dict(module.named_parameters())
        critic = [one for name, one in named.items() if "critic" in name or "value" in name]
        actor = [one for name, one in named.items() if "critic" not in name and "value" not in name]
        return {
            "actor": torch.optim.Adam(actor, lr=config.learning_rate),
            "critic": torch.optim.SGD(critic, lr=0.01, momentum=0.9),
        }


# -- paths -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Training:
    """A path that is one run: what it is told of, `scored` for bandits."""

    algorithm: Any
    env: Any = ""
    steps: int = 96
    options: Tree = attrs.field(factory=dict)
    scored: bool = False
    record: bool = True
    logged: Callable[[Path], Path] | None = None
    """Writes the log to learn from."""

    def __call__(self, folder: Path) -> Tree:
        data = [self.logged(folder)] if self.logged else []
        plain = self.run(data)
        watched = Watched()
        also: Tree = {"sampling.record": str(folder / "log")} if self.record else {}
        self.run(data, addons=[Watch(watched)], **also)
        golden: Tree = {
            "run": {
                "step": plain.step,
                "status": plain.status,
                "engine": plain.engine.partition(" ")[0],
                "updates": int(plain.metrics["time/updates"]),
            },
            "experience": recorded(folder / "log") if self.record else {},
            "batches": watched.told(),
            "scores" if self.scored else "weights": scores(plain)
            if self.scored
            else weights(plain),
            "metrics": metrics(plain),
        }
        return {name: section for name, section in golden.items() if section}

    def run(self, data: Any, addons: Sequence[AddOn] = (), **more: Any) -> Any:
        """One run of it."""
        return rlplug.run(
            self.algorithm,
            self.env,
            steps=self.steps,
            seed=3,
            addons=addons,
            data=data,
            options={
                "tracking.enabled": False,
                **(QUICK if not data else {}),
                **self.options,
                **more,
            },
        )


def bandit(algorithm: str, env: str = "", steps: int = 60, **options: Any) -> Training:
    """A run of a bandit."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    return Training(algorithm=algorithm, env=env, steps=steps, options=given, scored=True)


ROLLOUTS: Tree = {
    "n_steps": 32,
    "batch_size": 32,
    "n_epochs": 2,
    "num_envs": 2,
    "learning_rate": 0.003,
    "net_arch": [16, 16],
    "sampling.max_trajectory_length": 15,
}
REPLAY: Tree = {
    "learning_starts": 24,
    "batch_size": 16,
    "num_envs": 2,
    "net_arch": [16],
    "buffer_size": 60,
    "learning_rate": 0.003,
    "sampling.max_trajectory_length": 15,
}


def ppo(env: Any = "", algorithm: Any = "ppo", *, record: bool = True, **options: Any) -> Training:
    """A run of PPO: three rollouts, truncated episodes among them."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    given = {name: value for name, value in {**ROLLOUTS, **given}.items() if value is not None}
    return Training(algorithm=algorithm, env=env, steps=192, options=given, record=record)


def replay(algorithm: str, env: Any = "", *, record: bool = True, **options: Any) -> Training:
    """A run from a replay buffer that wraps around."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    given = {name: value for name, value in {**REPLAY, **given}.items() if value is not None}
    return Training(algorithm=algorithm, env=env, steps=96, options=given, record=record)


def clicks(folder: Path) -> Path:
    """200 logged rows of four arms, whose reward is linear in three features."""
    random = numpy.random.default_rng(0)
    context, theta = random.standard_normal((200, 3)), random.standard_normal((4, 3))
    action = random.integers(0, 4, 200)
    reward = (context * theta[action]).sum(1)
    file = folder / "clicks.npz"
    numpy.savez(file, context=context, action=action, reward=reward, propensity=[0.25] * 200)
    return file


def evaluated(folder: Path) -> Tree:
    """Evaluations in mid-training and after it."""
    options = {
        **QUICK,
        **ROLLOUTS,
        "env.normalize_observation": True,
        "evaluation.every": 64,
        "evaluation.episodes": 3,
        "evaluation.parallel": 2,
    }
    run = rlplug.run("ppo", partial(Walk, masked=True), steps=192, seed=3, options=options)
    assert run.best is not None
    later = rlplug.evaluate(
        run.folder, env=partial(Walk, masked=True), episodes=5, seed=11, checkpoint="last"
    )
    return {
        "run": {"best_step": run.best[0], "checkpoints": list(run.checkpoints)},
        "evaluation": summaries({"best": run.best[1], "later": later.returns}),
        "metrics": metrics(run),
    }


def of_two_seeds(folder: Path) -> Tree:
    """Two runs, each in a process of its own."""
    found = rlplug.run("linucb", steps=60, seeds=2, options=QUICK)
    assert len(found) == 2
    return {f"metrics of seed {seed}": metrics(run) for seed, run in enumerate(found)}


def two_learners(folder: Path) -> Tree:
    """A run whose minibatches are shared by two processes."""
    options = {**QUICK, **ROLLOUTS, "scale.learners": 2}
    run = rlplug.run("ppo", "CartPole-v1", steps=192, seed=3, options=options)
    return {"run": {"step": run.step}, "weights": weights(run), "metrics": metrics(run)}


KILLED: Tree = {
    "steps": 256,
    "seed": 3,
    "options": {
        **QUICK,
        **ROLLOUTS,
        "env.normalize_observation": True,
        "env.normalize_reward": True,
        "checkpoint.every": 64,
    },
}


class Kill(AddOn):
    """Kills the process after the update at or after a step."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(None)
        self.at = at

    @hookimpl
    def save_state(self) -> Tree:
        return {}

    @hookimpl
    def load_state(self, state: Any) -> None:
        """Nothing is kept: a resumed run is not killed again."""

    @hookimpl
    def update_finished(self, step: int) -> None:
        if self.at and step >= self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_and_resumed(folder: Path) -> Tree:
    """A run that was killed between two checkpoints, and resumed: it equals a whole one."""
    code = (
        "import rlplug, test_goldens as t; "
        "rlplug.run('ppo', 'CartPole-v1', addons=[t.Kill(at=192)], **t.KILLED)"
    )
    paths = [str(Path(__file__).parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ended = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    (killed,) = (folder / "work").iterdir()
    resumed = rlplug.resume(killed.name, addons=[Kill()])
    whole = rlplug.run("ppo", "CartPole-v1", addons=[Kill()], **KILLED)
    expected = whole.module.state_dict()
    for name, values in resumed.module.state_dict().items():
        assert torch.equal(torch.as_tensor(values), torch.as_tensor(expected[name])), name
    golden = {"run": {"step": resumed.step}, "weights": weights(resumed)}
    assert metrics(resumed) == metrics(whole)
    return {**golden, "metrics": metrics(resumed)}


PATHS: dict[str, Callable[[Path], Tree]] = {
    "linucb": bandit("linucb"),
    "lints": bandit("lints"),
    # Many steps of a large network would make its last digits grow.
    "neural-linucb": bandit("neural-linucb", steps=40, net_arch=[16, 16], refit_every=16),
    "ucb1": bandit("ucb1"),
    "metric-ucb": bandit("metric-ucb"),
    "thompson": bandit("thompson"),
    "epsilon-greedy": bandit("epsilon-greedy"),
    "softmax": bandit("softmax"),
    "linucb-disjoint-1024": bandit("linucb", steps=4096, num_envs=1024, model="disjoint"),
    "linucb-joint": bandit("linucb", model="joint", num_envs=2),
    "linucb-joint-1024": bandit("linucb", steps=4096, num_envs=1024, model="joint"),
    "linucb-hybrid": bandit("linucb", model="hybrid", alpha=0.5),
    "linucb-hybrid-1024": bandit("linucb", steps=4096, num_envs=1024, model="hybrid"),
    "linucb-feature-arms": bandit("linucb", "FeatureBandit-v0"),
    "linucb-feature-arms-1024": bandit("linucb", "FeatureBandit-v0", steps=2048, num_envs=1024),
    "linucb-feature-arms-hybrid": bandit("linucb", "FeatureBandit-v0", model="hybrid"),
    "linucb-discount": bandit("linucb", discount=0.9, l2_lambda=0.5),
    "dqn": replay("dqn"),
    "dqn-n-step-prioritized": replay("dqn", n_step=3, prioritized=True),
    "rainbow": replay("rainbow", "CartPole-v1"),
    "sac": replay("sac", sampling__max_trajectory_length=40),
    "td3": replay("td3", sampling__max_trajectory_length=40),
    "ppo": ppo(),
    "a2c": ppo(algorithm="a2c", n_steps=8, batch_size=None, n_epochs=None),
    "ppo-workers": ppo(sampling__backend="workers", num_workers=2, sampling__force_sync=True),
    "ppo-tensors": ppo(
        "examples.tensor_tasks:TensorCartPole",
        record=False,
        sampling__max_trajectory_length=None,
        env__max_episode_steps=15,
    ),
    "ppo-agents-shared": ppo(Pair, record=False, sampling__max_trajectory_length=None),
    "ppo-agents-own": ppo(
        Pair,
        record=False,
        sampling__max_trajectory_length=None,
        modules__one__agents="left",
        modules__two__agents="right",
        modules__two__learning_rate=0.01,
    ),
    "vdn": replay("vdn", Pair, record=False, sampling__max_trajectory_length=None),
    "ppo-lstm": ppo(memory="lstm", memory_size=8),
    "ppo-lstm-truncated-bptt": ppo(memory="lstm", memory_size=8, truncated_bptt=6),
    "ppo-masks": ppo(partial(Walk, masked=True)),
    "ppo-dict": ppo(partial(Walk, nested=True), record=False),
    "ppo-normalized": ppo(env__normalize_observation=True, env__normalize_reward=True),
    # Minibatches of 20, 20, 20 and 4 rows, two of them at a time.
    "ppo-accumulated": ppo(learner__accumulate=2, batch_size=20),
    "ppo-optimizers-in-turn": ppo(algorithm=TwoOptimizers, learner__optimizers="in_turn"),
    "ppo-two-learners": two_learners,
    "ppo-killed-and-resumed": killed_and_resumed,
    "ppo-evaluated": evaluated,
    "linucb-log": attrs.evolve(
        bandit("linucb", steps=0, rows_per_update=64), logged=clicks, record=False
    ),
    "linucb-log-offline-evaluation": attrs.evolve(
        bandit("linucb", steps=0, rows_per_update=64, data__offline_evaluation="accepted"),
        logged=clicks,
        record=False,
    ),
    "bc": Training(
        algorithm="bc",
        steps=128,
        options={"batch_size": 32, "learning_rate": 0.003},
        logged=clicks,
        record=False,
    ),
    "linucb-two-seeds": of_two_seeds,
}


# -- the command, and the test ---------------------------------------------------------------------


@contextmanager
def own_home() -> Iterator[Path]:
    """A runs folder for one path."""
    before = os.environ.get("RLPLUG_HOME")
    with tempfile.TemporaryDirectory() as name:
        os.environ["RLPLUG_HOME"] = name
        try:
            yield Path(name)
        finally:
            if before is None:
                del os.environ["RLPLUG_HOME"]
            else:
                os.environ["RLPLUG_HOME"] = before


def made(name: str) -> Tree:
    """What the runs of a path do now, as its file would have it."""
    with own_home() as folder:
        golden: Tree = json.loads(written(PATHS[name](folder)))
        return golden


def changes(name: str, found: Tree) -> list[str]:
    """What differs from the file of a path."""
    file = FOLDER / f"{name}.json"
    if not file.exists():
        return ["it has no file yet"]
    return differences(json.loads(file.read_text(encoding="utf-8")), found)


@pytest.mark.parametrize("name", PATHS)
def test_a_path_does_what_it_did(name: str) -> None:
    lines = changes(name, made(name))
    assert not lines, f"python tests/test_goldens.py {name}\n" + "\n".join(lines)


def test_every_golden_has_a_path() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == set(PATHS)


def main() -> int:
    """Print for each path what changed; with --write, make its file anew."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *PATHS])
    arguments = parser.parse_args()
    any_changed = False
    for name in arguments.names or PATHS:
        start = time.process_time()
        found = made(name)
        lines = changes(name, found)
        any_changed |= bool(lines)
        spent = time.process_time() - start
        print(f"{name} ({spent:.1f} s): {'changed' if lines else 'unchanged'}", flush=True)
        for line in lines:
            print(f"  {line}")
        if arguments.write and lines:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{name}.json").write_text(written(found), encoding="utf-8")
    return int(any_changed and not arguments.write)


if __name__ == "__main__":
    sys.exit(main())
