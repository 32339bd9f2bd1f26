"""Training state that is sharded by FSDP2: two learners move as they do with averaged gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn

from rlplug import Algorithm, Module, hookimpl
from rlplug.config.scale_section import ScaleSection
from rlplug.config.sources import Setting
from rlplug.errors import RequestError
from rlplug.learner import Learner
from rlplug.registry import Registry
from rlplug.runs.build_learner import build_learner
from rlplug.runs.learners.sharding import refuse_unshardable
from rlplug.runs.prepare import prepare
from rlplug.runs.request import Request
from tests.warm import Warm

PAIR = Path(__file__).parent / "sharded_pair.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> list[Any]:
    """What the cases of `sharded_pair.py` found, of both learners."""
    folder = tmp_path_factory.mktemp("sharded")
    code = f"import runpy; runpy.run_path({str(PAIR)!r}, run_name='__main__')"
    processes = [
        warm.start(str(rank), str(folder / "store"), str(folder / str(rank)), code=code)
        for rank in (0, 1)
    ]
    try:
        codes = [process.wait(240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0], [process.err for process in processes]
    return [json.loads((folder / str(rank)).read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("case", ["polyak", "fixed", "noisy", "ppo", "ppo in bf16"])
def test_sharded_learners_move_as_those_that_average_gradients(found: list[Any], case: str) -> None:
    for one in found:
        told = one[case]
        assert told["weights"] <= 1e-8
        assert told["optimizer"] <= 1e-7
        assert told["moved"] > 1e-3
        assert told["same names"]
        for name, (ddp, fsdp) in told["metrics"].items():
            assert fsdp == pytest.approx(ddp, abs=1e-6), name
    assert found[0][case] == found[1][case]


@pytest.mark.parametrize(
    ("case", "update", "moves"),
    [
        ("without a loss", "second", True),
        ("without a loss", "third", False),
        ("stopped by one", "stopped", False),
        ("stopped by one", "after", True),
    ],
)
def test_a_learner_that_has_no_loss_or_stops_joins_in(
    found: list[Any], case: str, update: str, moves: bool
) -> None:
    for one in found:
        told = one[case][update]
        assert (told["weights"], told["optimizer"]) == (0.0, 0.0)
        assert (told["moved"] > 0.1) is moves
        for name, (ddp, fsdp) in told["metrics"].items():
            assert fsdp == pytest.approx(ddp, abs=1e-6), name


def test_parts_that_are_named_and_target_networks_are_sharded_by_themselves(
    found: list[Any],
) -> None:
    for one in found:
        assert one["parts"] == [
            [""],
            ["", "layers.0", "idle"],
            ["", "network.body.hidden.0", "target"],
        ]


@pytest.mark.parametrize("case", ["fewer minibatches", "begun from a state"])
def test_steps_of_one_learner_alone_and_states_of_whole_weights_are_continued(
    found: list[Any], case: str
) -> None:
    for one in found:
        assert (one[case]["weights"], one[case]["optimizer"]) == (0.0, 0.0)
        assert one[case]["moved"] > 0.1


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("writes", "a plugin changes the parameter 'idle.weight' by itself"),
        ("replaces", "a plugin puts another tensor in place of the buffer 'count'"),
        ("aside", "the loss is not computed from what forward_train returned"),
    ],
)
def test_what_would_not_reach_the_shards_is_refused(
    found: list[Any], case: str, message: str
) -> None:
    for one in found:
        (said,) = one[case]
        assert message in said


def test_a_learner_that_died_is_not_waited_for(found: list[Any]) -> None:
    assert [one["death"] for one in found] == ["broken", ""]


def refused(learner: Learner, **options: Any) -> str:
    """Why a learner cannot be sharded, with these options of the core."""
    flags = {"run": {"algorithm": "ppo"}, "scale": {"learners": 2, "parallel": "fsdp"}}
    settings = tuple(Setting(name, value) for name, value in options.items())
    config = prepare(Request(flags=flags, settings=settings), Registry.installed()).config
    with pytest.raises(RequestError) as raised:
        refuse_unshardable(learner, config)
    return str(raised.value)


SEEN, CHOICES = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("sac", "there are 3 optimizers (critic, actor, temperature), and FSDP2 reduces"),
        ("td3", "there are 2 optimizers (critic, actor), and FSDP2 reduces"),
        ("linucb", "it learns without gradients: there is no optimizer to shard."),
    ],
)
def test_algorithms_that_cannot_be_sharded_are_refused_with_the_reason(
    algorithm: str, message: str
) -> None:
    actions = CHOICES if algorithm == "linucb" else spaces.Box(-1, 1, (1,))
    said = refused(build_learner(algorithm, SEEN, actions))
    assert said.startswith(f"a run with scale.parallel = 'fsdp': algorithm {algorithm!r}")
    assert message in said
    assert said.endswith("\n  try: --set scale.parallel=ddp")


def test_plugins_that_need_whole_gradients_or_optimizers_of_their_own_are_refused() -> None:
    said = refused(build_learner("ppo", SEEN, CHOICES, addons=["pcgrad"]))
    assert "add-on 'pcgrad'" in said
    assert "changes gradients, of which each learner has a shard.\n  try: without 'pcgrad'" in said
    said = refused(build_learner("ppo", SEEN, CHOICES, addons=["rnd"]))
    assert "there are 2 optimizers (default, rnd)" in said


class Single(Module):
    """One number, from which nothing is computed in `forward_train`."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.ones(()))


class Odd(Algorithm):
    """All that a module and an optimizer can have against being sharded."""

    @hookimpl
    def build(self) -> Single:
        return Single()

    @hookimpl
    def configure_optimizers_for_module(self, module: Single) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(module.parameters())


def test_modules_and_optimizers_that_cannot_be_sharded_are_refused_all_at_once() -> None:
    said = refused(build_learner(Odd, SEEN, CHOICES))
    assert "it computes its loss outside of forward_train." in said
    assert "its parameter 'number' is a single number, which has no shards." in said
    assert "its optimizer is LBFGS, which does not step each number by itself." in said
    both = {"a": (SEEN, CHOICES), "b": (SEEN, CHOICES)}
    assert "it is for one module, here are 2." in refused(build_learner("ppo", modules=both))


def test_options_that_do_not_go_with_shards_are_refused_all_at_once() -> None:
    learner = build_learner("ppo", SEEN, CHOICES)
    options = {
        "compute.compile": True,
        "compute.precision": "fp16",
        "learner.accumulate": 2,
        "learner.nonfinite": "stop",
        "learner.balance_grad_norms": True,
    }
    said = refused(learner, **options)
    for name in ("compute.compile", "fp16", *list(options)[2:]):
        assert name in said
    said = refused(learner, **{"scale.fsdp_parts": ["network.bodi", "network.*body.hidden.0"]})
    assert (
        "scale.fsdp_parts: the module has no part 'network.bodi'. Did you mean 'network.body'?\n"
        "  there are: network, network.body, network.body.encoder," in said
    )
    assert "hidden.0'" not in said


def test_options_of_fsdp_that_would_have_no_effect_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fsdp_parts would have no effect with parallel = 'ddp'"):
        ScaleSection(learners=2, fsdp_parts=("network",))
    with pytest.raises(ValueError, match="fsdp_reshard would have no effect without fsdp_parts"):
        ScaleSection(learners=2, parallel="fsdp", fsdp_reshard=False)
