"""Exported programs act as the policies they were made of."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from gymnasium import spaces

import rlplug as library
from rlplug import Acted, ActInput, Module
from rlplug.errors import RequestError
from rlplug.serving import Policy
from rlplug.serving.export import export_policy

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

QUICK = {"tracking.enabled": False, "evaluation.episodes": 0}

CASES: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "disjoint": ("linucb", "", 60, {}),
    "discounted": ("linucb", "", 60, {"discount": 0.99}),
    "joint": ("linucb", "", 60, {"model": "joint"}),
    "hybrid": ("linucb", "", 60, {"model": "hybrid"}),
    "featured arms": ("linucb", "FeatureBandit-v0", 60, {}),
    "featured hybrid": ("linucb", "FeatureBandit-v0", 60, {"model": "hybrid"}),
    "no context": ("linucb", "MultiArmedBandit-v0", 60, {}),
    "lints": ("lints", "", 60, {}),
    "neural": ("neural-linucb", "", 60, {"refit_every": 20}),
    "neural featured": ("neural-linucb", "FeatureBandit-v0", 60, {"refit_every": 20}),
    "ucb1": ("ucb1", "", 60, {}),
    "metric-ucb": ("metric-ucb", "", 60, {}),
    "thompson": ("thompson", "", 60, {}),
    "epsilon-greedy": ("epsilon-greedy", "", 60, {}),
    "softmax": ("softmax", "", 60, {}),
    "discrete": ("ppo", "CartPole-v1", 256, {"n_steps": 32}),
    "normalized": ("ppo", "Pendulum-v1", 256, {"n_steps": 32, "env.normalize_observation": True}),
    "normalized and clipped": (
        "ppo",
        "Pendulum-v1",
        256,
        {"n_steps": 32, "env.normalize_observation": True, "env.normalize_clip": 0.5},
    ),
    "squashed frames": (
        "ppo",
        "Pendulum-v1",
        256,
        {"n_steps": 32, "squash": True, "env.frame_stack": 3},
    ),
    "lstm": ("ppo", "CartPole-v1", 256, {"n_steps": 32, "memory": "lstm"}),
    "gru, own critic": (
        "a2c",
        "CartPole-v1",
        128,
        {"memory": "gru", "shared_encoder": False},
    ),
    "one-hot": ("ppo", "Taxi-v4", 256, {"n_steps": 32}),
    "tuple": ("ppo", "Blackjack-v1", 256, {"n_steps": 32}),
    "dqn": ("dqn", "CartPole-v1", 150, {"learning_starts": 100}),
    "dueling, distributional": ("rainbow", "CartPole-v1", 150, {"learning_starts": 100}),
    "quantiles": ("dqn", "CartPole-v1", 150, {"learning_starts": 100, "quantile": True}),
    "sac": ("sac", "Pendulum-v1", 150, {"net_arch": [16]}),
    "discrete sac": ("sac", "CartPole-v1", 150, {"net_arch": [16]}),
    "td3": ("td3", "Pendulum-v1", 150, {"net_arch": [16]}),
}
"""Every shipped algorithm, and what changes the program."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the run of a case, of which there is one."""
    home = tmp_path_factory.mktemp("runs")

    @cache
    def train(name: str) -> Path:
        algorithm, env, steps, options = CASES[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RLPLUG_HOME", str(home))
            run = library.run(algorithm, env, steps=steps, options={**QUICK, **options})
        return run.folder

    return train


QUICKLY = {
    *("discounted", "featured hybrid", "no context", "neural", "lints", "thompson"),
    *("normalized and clipped", "lstm", "tuple", "dueling, distributional", "sac"),
}
"""One of each kind of program: the others are tried before a release."""


@pytest.mark.parametrize(
    "name",
    [name if name in QUICKLY else pytest.param(name, marks=pytest.mark.long) for name in CASES],
)
def test_a_program_acts_as_the_policy_for_any_number_of_observations(
    name: str, trained: Callable[[str], Path], tmp_path: Path
) -> None:
    policy = library.load(trained(name))
    made = export_policy(policy, tmp_path / "policy.pt2", "pt2")
    # 1, 2, 7 and 256 observations, with memory three times in a row.
    assert made.rows == 266 * (3 if policy.has_memory else 1)
    assert made.difference <= 1e-5
    # Nothing of rlplug is needed to use it.
    program = torch.export.load(tmp_path / "policy.pt2").module()
    space = policy.observation_space
    rows = [space.sample() for _ in range(5)]
    for row in rows:
        if isinstance(row, dict) and "action_mask" in row:
            row["action_mask"][:] = 1
    batch = _stacked(rows)
    given = {"observation": _tensors(batch)}
    if policy.has_memory:
        given["state"] = policy.module.initial_state(5)
    policy.reset()
    found = program(**given)
    actions = found[0] if policy.has_memory else found
    numpy.testing.assert_allclose(actions.numpy(), policy.predict(batch), atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        *("lstm", "tuple"),
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("featured arms", "normalized", "dqn")
        ),
    ],
)
def test_an_onnx_file_acts_as_the_policy(
    name: str, trained: Callable[[str], Path], tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    session_of = pytest.importorskip("onnxruntime").InferenceSession
    folder = trained(name)
    policy = library.load(folder)
    file = tmp_path / "policy.onnx"
    made = export_policy(policy, file, "onnx", about={"run_id": folder.name})
    assert made.difference <= 1e-5
    session = session_of(str(file), providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["rlplug"])
    assert facts["run_id"] == folder.name
    assert {one.name for one in session.get_inputs()} <= {one.name for one in made.inputs}
    assert [one.name for one in session.get_outputs()] == [one.name for one in made.outputs]


class Spread(Module):
    """Acts in a space by one linear layer, masked."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        super().__init__()
        from rlplug.nn import make_distribution

        self.distribution = make_distribution(action_space)
        self.layer = torch.nn.Linear(3, self.distribution.size)

    def forward_inference(self, act: ActInput) -> Acted:
        parameters = self.layer(torch.as_tensor(act.observations)).numpy()
        mode = self.distribution.mode(parameters, act.action_mask)
        return Acted(self.distribution.for_env(mode))

    def forward_export(self, act: ActInput) -> Acted:
        return Acted(self.distribution.tensor_mode(self.layer(act.observations), act.action_mask))


BOX = spaces.Box(-1, 1, (3,), numpy.float32)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=3),
        spaces.MultiDiscrete([3, 2, 4]),
        spaces.MultiDiscrete([[3, 3], [3, 3]], start=[[0, 1], [2, 3]]),
        spaces.MultiBinary(5),
    ],
    ids=str,
)
def test_masks_are_inputs_when_asked_for(space: spaces.Space[Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy = Policy(Spread(space).eval(), BOX, space)
    made = export_policy(policy, tmp_path / "policy.pt2", "pt2", action_mask=True)
    assert [one.name for one in made.inputs] == ["observation", "action_mask"]
    assert made.difference == 0
    plain = export_policy(policy, tmp_path / "plain.pt2", "pt2")
    assert [one.name for one in plain.inputs] == ["observation"]


class Nested(Spread):
    """Reads nested observations, masked by what they hold."""

    def forward_inference(self, act: ActInput) -> Acted:
        first, (second, _) = act.observations["seen"], act.observations["parts"]
        parameters = self.layer(torch.as_tensor(first + second)).numpy()
        mask = act.observations.get("action_mask")
        return Acted(self.distribution.for_env(self.distribution.mode(parameters, mask)))

    def forward_export(self, act: ActInput) -> Acted:
        seen, parts = act.observations["seen"], act.observations["parts"]
        parameters = self.layer(seen + parts[0])
        return Acted(self.distribution.tensor_mode(parameters, act.action_mask))


@pytest.mark.parametrize("mask", [True, False])
def test_nested_observations_are_inputs_with_the_names_of_their_places(
    mask: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    actions = spaces.Discrete(4)
    parts = {"seen": BOX, "parts": spaces.Tuple((BOX, BOX))}
    if mask:
        parts["action_mask"] = spaces.MultiBinary(4)
    policy = Policy(Nested(actions).eval(), spaces.Dict(parts), actions)
    made = export_policy(policy, tmp_path / "policy.pt2", "pt2")
    names = ["observation.parts.0", "observation.parts.1", "observation.seen"]
    assert [one.name for one in made.inputs] == ["observation.action_mask"] * mask + names
    assert [one.shape for one in made.inputs[-3:]] == [(3,)] * 3
    assert made.difference == 0


def test_a_mask_is_refused_for_actions_without_one(tmp_path: Path) -> None:
    space = spaces.Box(-1, 1, (2,), numpy.float32)
    with pytest.raises(RequestError, match="have no mask"):
        export_policy(Policy(Spread(space), BOX, space), tmp_path / "a", "pt2", action_mask=True)


class WithoutExport(Spread):
    """`forward_inference` uses NumPy, and there is nothing else."""

    forward_export = Module.forward_export


class Wrong(Spread):
    """Exports the opposite."""

    def forward_export(self, act: ActInput) -> Acted:
        return Acted(1 - self.layer(act.observations)[:, :2])


def test_a_module_that_cannot_be_exported_is_named_with_what_to_define(tmp_path: Path) -> None:
    space = spaces.Discrete(4)
    policy = Policy(WithoutExport(space).eval(), BOX, space)
    with pytest.raises(RequestError) as refused:
        export_policy(policy, tmp_path / "policy.pt2", "pt2")
    assert refused.value.message.startswith("WithoutExport cannot be exported: ")
    assert "WithoutExport.forward_export(act)" in refused.value.hints[0]
    assert not [*tmp_path.iterdir()]


class OneMore(Spread):
    """Exports the next action."""

    def forward_export(self, act: ActInput) -> Acted:
        return Acted(self.layer(act.observations).argmax(1) + 1)


@pytest.mark.parametrize(
    ("kind", "space"),
    [(Wrong, spaces.Box(-1, 1, (2,), numpy.float32)), (OneMore, spaces.Discrete(4))],
)
def test_a_program_that_acts_otherwise_is_not_kept(
    kind: Any, space: spaces.Space[Any], tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="acts otherwise than the policy"):
        export_policy(Policy(kind(space).eval(), BOX, space), tmp_path / "policy.pt2", "pt2")
    assert not [*tmp_path.iterdir()]


def test_the_command_prints_what_the_file_takes_and_how_to_use_it(
    home: Path, tmp_path: Path, rlplug: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = library.run("linucb", steps=200, options=QUICK)
    done = rlplug("export", "last")
    assert done.code == 0, done.err
    file = tmp_path / "linucb-LinearBandit-v0-200.pt2"
    assert "inputs   observation float64 (n, 8)" in done.out
    assert "outputs  action int64 (n)" in done.out
    observation = numpy.zeros((3, 8))
    how = done.out.splitlines()[-1].removeprefix("use it: ")
    assert how == f'torch.export.load("{file.name}").module()(observation=…)'
    policy = torch.export.load(file).module()
    actions = policy(observation=torch.from_numpy(observation))
    assert actions.tolist() == library.load(run.run_id).predict(observation).tolist()

    again = rlplug("export", "last")
    assert (again.code, again.out) == (2, "")
    assert f"{file.name} exists." in again.err
    assert "--force" in again.err
    replaced = rlplug("export", "last", "--force", "--json")
    assert json.loads(replaced.out)["file"] == str(file)
    assert rlplug("export", "last", "-o", "none/policy.pt2").code == 2


def test_onnx_without_its_packages_is_an_error_that_names_the_extra(
    home: Path, rlplug: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.run("linucb", steps=100, options=QUICK)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = rlplug("export", "last", "-o", "policy.onnx")
    assert done.code == 2
    assert "ONNX needs onnxruntime" in done.err
    assert "pip install 'rlplug[onnx]'" in done.err


def _stacked(rows: list[Any]) -> Any:
    if isinstance(rows[0], dict):
        return {key: _stacked([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(_stacked(list(part)) for part in zip(*rows, strict=True))
    return numpy.stack([numpy.asarray(row) for row in rows])


def _tensors(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _tensors(part) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(_tensors, batch))
    return torch.from_numpy(batch)
