"""What is shipped, and what people write of the literature, trains on arrays as in torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

import rlplug
from rlplug import Acted, ActInput, Algorithm, Batch, Loss, Module, build_learner
from rlplug.feeds import Replay

# -- field algorithms ------------------------------------------------------------------------------


WIDTH = 64
GAMMA = 0.99


def mlp(inputs: int, outputs: int, *, norm: bool = False) -> nn.Sequential:
    """Two hidden layers."""
    layers: list[nn.Module] = []
    for width in (inputs, WIDTH):
        layers += [nn.Linear(width, WIDTH), nn.ReLU()]
        layers += [nn.BatchNorm1d(WIDTH)] if norm else []
    return nn.Sequential(*layers, nn.Linear(WIDTH, outputs))


def taken(outputs: Tensor, actions: Tensor) -> Tensor:
    """The outputs of the actions taken, (n, actions) or (n, actions, k) to (n,) or (n, k)."""
    index = actions.long().reshape(-1, 1, *[1] * (outputs.dim() - 2))
    return outputs.gather(1, index.expand(-1, 1, *outputs.shape[2:])).squeeze(1)


def backed_up(batch: Any, following: Tensor) -> Tensor:
    """Rewards and discounted values of next states, (n,) or (n, k)."""
    rewards, alive = batch["rewards"], 1 - batch["terminated"].float()
    if following.dim() == 2:
        rewards, alive = rewards.unsqueeze(1), alive.unsqueeze(1)
    return rewards + GAMMA * alive * following


def quantile_huber(quantiles: Tensor, targets: Tensor, fractions: Tensor) -> Tensor:
    """Quantile Huber loss of (n, m) against (n, k), with fractions that broadcast to (n, m)."""
    errors = targets.unsqueeze(1) - quantiles.unsqueeze(2)
    huber = functional.huber_loss(
        quantiles.unsqueeze(2).expand_as(errors),
        targets.unsqueeze(1).expand_as(errors),
        reduction="none",
    )
    weights = (fractions.unsqueeze(-1) - (errors.detach() < 0).float()).abs()
    return (weights * huber).sum(1).mean()


class Gaussian(nn.Module):
    """A policy over actions between -1 and 1."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.net = mlp(inputs, 2 * size)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(observations).chunk(2, -1)
        return mean, torch.clamp(log_std, -5, 2)

    def draw(self, observations: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        mean, log_std = self(observations)
        noise = torch.randn(mean.shape, generator=generator)
        drawn = mean + log_std.exp() * noise
        normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        slope = 2 * (math.log(2) - drawn - functional.softplus(-2 * drawn))
        return drawn.tanh(), (normal - slope).sum(-1)


class Network(Module):
    """What all of them share: acting, by `scores` of discrete actions or a `policy`."""

    policy: Gaussian
    updates = 0

    def scores(self, observations: Tensor) -> Tensor:
        """What is largest for the best action."""
        raise NotImplementedError

    @torch.no_grad()
    def forward_exploration(self, act: ActInput) -> Acted:
        observations = torch.as_tensor(act.observations)
        if "policy" in self._modules:
            return Acted(self.policy(observations)[0].tanh().numpy())
        return Acted(self.scores(observations).argmax(-1).numpy())

    def forward_inference(self, act: ActInput) -> Acted:
        return self.forward_exploration(act)


class Field(Algorithm):
    """What all of them share: Adam over everything, and how targets follow."""

    kind: ClassVar[type[Any]]

    def feed(self) -> Replay:
        return Replay(batch_size=64)

    def build(self, observation_space: Any, action_space: Any) -> Any:
        size = action_space.n if hasattr(action_space, "n") else action_space.shape[0]
        return self.kind(observation_space.shape[0], int(size))

    def configure_optimizers_for_module(self, module: Any) -> Any:
        return Adam([p for p in module.parameters() if p.requires_grad], lr=1e-3, fused=True)

    @torch.no_grad()
    def additional_update(self, module: Any) -> None:
        if "target" in module._modules:
            targets, sources = module.target.parameters(), module.net.parameters()
            torch._foreach_lerp_(list(targets), list(sources), 0.01)


class Policy(Network):
    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.net = mlp(inputs, actions)

    def scores(self, observations: Tensor) -> Tensor:
        return self.net(observations)  # type: ignore[no-any-return] # of a network


class Reinforce(Field):
    """Williams 1992, on returns that are normalised."""

    kind = Policy

    def compute_loss_for_module(self, module: Policy, batch: Any) -> Tensor:
        returns = batch["rewards"]
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        logits = module.scores(batch["observations"])
        return functional.cross_entropy(logits, batch["actions"], reduction="none") @ returns / 64


class Implicit(Network):
    """Quantiles at fractions that are drawn, by an embedding of cosines."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.net = nn.ModuleDict(
            {
                "body": nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU()),
                "cosines": nn.Sequential(nn.Linear(32, WIDTH), nn.ReLU()),
                "head": nn.Sequential(
                    nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, actions)
                ),
            }
        )
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.register_buffer("steps", math.pi * torch.arange(1, 33))

    def quantiles(self, net: Any, observations: Tensor, fractions: Tensor) -> Tensor:
        """(n, k) fractions to (n, actions, k)."""
        cosines = torch.cos(fractions.unsqueeze(-1) * self.steps)
        features = net["body"](observations).unsqueeze(1) * net["cosines"](cosines)
        return net["head"](features).transpose(1, 2)  # type: ignore[no-any-return] # of a network

    def scores(self, observations: Tensor) -> Tensor:
        even = (torch.arange(8) + 0.5).expand(len(observations), 8) / 8
        return self.quantiles(self.net, observations, even).mean(-1)


class IQN(Field):
    """Dabney et al. 2018."""

    kind = Implicit

    def prepare_batch(self, module: Implicit, batch: Any, learner: Any) -> Mapping[str, Tensor]:
        fractions = torch.rand(batch.rows, 8, generator=learner.generator())
        following = module.quantiles(module.target, batch["next_observations"], fractions)
        return {"targets": backed_up(batch, taken(following, following.mean(-1).argmax(-1)))}

    def compute_loss_for_module(self, module: Implicit, batch: Any, learner: Any) -> Tensor:
        fractions = torch.rand(batch.rows, 8, generator=learner.generator())
        outputs = module.quantiles(module.net, batch["observations"], fractions)
        return quantile_huber(taken(outputs, batch["actions"]), batch["targets"], fractions)


class Continuous(Network):
    """A Gaussian policy and two critics; with a target, unless they are normalised."""

    norm = False
    outputs = 1

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.policy = Gaussian(inputs, size)
        critics = (mlp(inputs + size, self.outputs, norm=self.norm) for _ in range(2))
        self.net = nn.ModuleList(critics)
        if not self.norm:
            self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.value = mlp(inputs, 1)

    def critics(self, nets: Any, observations: Tensor, actions: Tensor) -> Tensor:
        """(n, 2), or (n, 2, outputs)."""
        seen = torch.cat([observations, actions], 1)
        return torch.stack([net(seen) for net in nets], 1).squeeze(-1)


class ContinuousField(Field):
    """Critics and the policy have an optimizer each."""

    kind = Continuous

    def configure_optimizers_for_module(self, module: Continuous) -> Any:
        critics = [*module.net.parameters(), *module.value.parameters()]
        return {
            "critic": Adam(critics, lr=1e-3, fused=True),
            "actor": Adam(module.policy.parameters(), lr=1e-3, fused=True),
        }


class Normed(Continuous):
    norm = True


class CrossQ(ContinuousField):
    """Bhatt et al. 2024: batch normalisation over both states instead of a target network."""

    kind = Normed

    def compute_loss_for_module(self, module: Normed, batch: Any, learner: Any) -> Loss:
        observations, random = batch["observations"], learner.generator()
        with torch.no_grad():
            actions, logs = module.policy.draw(batch["next_observations"], random)
        both = torch.cat([observations, batch["next_observations"]])
        values = module.critics(module.net, both, torch.cat([batch["actions"], actions]))
        now, after = values.chunk(2)
        targets = backed_up(batch, after.detach().min(1).values - 0.1 * logs)
        critic = functional.mse_loss(now, targets.unsqueeze(1).expand(-1, 2))
        drawn, log_prob = module.policy.draw(observations, random)
        module.net.eval()
        best = module.critics(module.net, observations, drawn).mean(1)
        module.net.train()
        return Loss({"critic": critic, "actor": (0.1 * log_prob - best).mean()})


DISCRETE = (Reinforce, IQN)
ALGORITHMS = (*DISCRETE, CrossQ)

# -- field algorithms ------------------------------------------------------------------------------


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
