"""A checkpoint that came from somebody else imports nothing unless the person says so."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy
import pytest
from torch import nn

from rlplug import (
    Acted,
    Algorithm,
    Module,
    Registry,
    evaluate,
    hookimpl,
    load,
    option,
    resume,
    run,
)
from rlplug.errors import RequestError
from rlplug.feeds import Stream
from rlplug.nn.encoders import load_encoder
from tests.envs import OneStep
from tests.warm import Warm

Cli = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("home", "foreign_code")

OFF = {"tracking.enabled": False, "evaluation.episodes": 0}

FOREIGN = """
import gymnasium
import torch
from torch import nn

class Wrap(gymnasium.Wrapper):
    pass

class Net(nn.Linear):
    def __init__(self, space):
        super().__init__(2, 2, dtype=torch.float64)
"""


@pytest.fixture
def foreign_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that can be imported."""
    (tmp_path / "foreign_code.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("foreign_code", None)


def was_imported() -> bool:
    return "foreign_code" in sys.modules


def elsewhere(run_folder: Path, old: str, new: str) -> Path:
    """A copy of a run in another folder, whose last checkpoint has another config."""
    copy = Path(shutil.copytree(run_folder, run_folder.parent.parent.parent / "copied"))
    checkpoint = sorted((copy / "checkpoints").iterdir())[-1]
    text = (checkpoint / "config.toml").read_text()
    assert old in text
    (checkpoint / "config.toml").write_text(text.replace(old, new))
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    content = (checkpoint / "config.toml").read_bytes()
    manifest["files"]["config.toml"] = hashlib.sha256(content).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    return copy


class Acts(Module):
    """Chooses action 1."""

    def __init__(self, encoder: nn.Module | None) -> None:
        super().__init__()
        self.encoder = encoder

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.ones(len(act.observations), numpy.int64))

    forward_inference = forward_exploration


@attrs.frozen(kw_only=True)
class Options:
    encoder: str = option("", "Encoder, as module:Class; empty: none.")


class Encodes(Algorithm):
    """Has an encoder that it does not train."""

    Config: ClassVar[type[Options]] = Options
    config: Options

    def feed(self) -> Stream:
        return Stream()

    @hookimpl
    def build(self, observation_space: Any, config: Options) -> Module:
        return Acts(load_encoder(config.encoder, observation_space) if config.encoder else None)

    @hookimpl
    def configure_optimizers_for_module(self) -> None:
        return None


ENCODES = Registry.of(encodes=Encodes)


@pytest.mark.parametrize("path", ["foreign_code:Net", "foreign_code://Net", " foreign_code:Net"])
def test_loading_the_run_of_somebody_else_refuses_an_encoder_before_it_is_imported(
    path: str,
) -> None:
    result = run(Encodes, OneStep, steps=3, options=OFF)
    copy = elsewhere(result.folder, 'encoder = ""', f'encoder = "{path}"')
    with pytest.raises(RequestError, match="was not written by this user") as raised:
        load(copy, registry=ENCODES)
    assert raised.value.hints == (
        f"algorithm.encoder = {path!r}",
        "try: --trust, once (in Python: trust=True; in MLflow: RLPLUG_TRUST=true), if you trust "
        "who made it",
    )
    with pytest.raises(RequestError, match="was not written by this user"):
        evaluate(copy, env=OneStep, registry=ENCODES)
    assert not was_imported()


def test_a_run_of_ones_own_is_trusted() -> None:
    options = {**OFF, "encoder": "foreign_code:Net", "env.wrappers": ["foreign_code:Wrap"]}
    result = run(Encodes, OneStep, steps=3, options=options)
    assert load(result.run_id, registry=ENCODES).step == 3
    done = evaluate(result.run_id, env=OneStep, episodes=2, registry=ENCODES)
    assert done.metrics["eval/return_mean"] == 1.0


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (
            'env = "LinearBandit-v0"',
            'env = "foreign_code:LinearBandit-v0"',
            "run.env = 'foreign_code:LinearBandit-v0'",
        ),
        ("wrappers = []", 'wrappers = ["foreign_code:Wrap"]', "env.wrappers = ['foreign_code:"),
        (
            "[env]",
            '[env]\narm_factory = "foreign_code:Wrap"',
            "env.arm_factory = 'foreign_code:Wrap'",
        ),
        ("[env]", '[modules.default]\nencoder = "foreign_code:Net"\n\n[env]', "modules.default."),
    ],
)
@pytest.mark.parametrize("command", ["eval", "run --like"])
@pytest.mark.usefixtures("installed")
def test_a_run_of_somebody_else_is_evaluated_and_run_again_without_its_code_unless_trusted(
    rlplug: Cli, home: Path, command: str, old: str, new: str, named: str
) -> None:
    trained = rlplug("run", "--algo", "means", "--steps", "20", "--set", "tracking.enabled=false")
    assert trained.code == 0
    (folder,) = (home / "work").iterdir()
    config = (folder / "config.toml").read_text()
    copy = elsewhere(folder, old, new)
    (copy / "config.toml").write_text(config.replace(old, new))
    line = (*command.split(), str(copy))
    refused = rlplug(*line)
    assert (refused.code, refused.out, was_imported()) == (2, "", False)
    assert named in refused.err
    assert "try: --trust" in refused.err
    trusted = rlplug(*line, "--trust")
    if "unknown" in trusted.err:
        # Options that nothing reads are refused for themselves.
        assert named.startswith(("env.arm_factory", "modules"))
    else:
        assert (trusted.code, was_imported()) == (0, True)
    if command == "eval" and not named.startswith("modules"):
        # A policy acts without its environment.
        assert load(copy).step == 20
    # Trust is remembered, and one's own needs none.
    assert rlplug(*line).code == trusted.code
    assert rlplug("run", "--like", folder.name, "--dry-run").code == 0


def test_weights_of_somebody_else_begin_a_run_without_what_their_config_imports() -> None:
    result = run(Encodes, OneStep, steps=3, options=OFF)
    copy = elsewhere(result.folder, 'encoder = ""', 'encoder = "foreign_code:Net"')
    begun = run(Encodes, OneStep, steps=3, options={**OFF, "run.init_from": str(copy)})
    assert (begun.status, was_imported()) == ("FINISHED", False)


def test_a_run_in_the_runs_folder_that_another_user_wrote_needs_trust_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**OFF, "encoder": "foreign_code:Net", "checkpoint.every": 3}
    result = run(Encodes, OneStep, steps=3, options=options)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    sys.modules.pop("foreign_code")
    for use in (
        lambda: load(result.run_id, registry=ENCODES),
        lambda: evaluate(result.run_id, env=OneStep, registry=ENCODES),
        lambda: resume(result.run_id, steps=6, algorithm=Encodes, env=OneStep),
    ):
        with pytest.raises(RequestError, match="was not written by this user"):
            use()
    assert not was_imported()
    longer = resume(result.run_id, steps=6, algorithm=Encodes, env=OneStep, trust=True)
    assert longer.step == 6
    assert load(f"{result.run_id}@3", registry=ENCODES).step == 3
    assert load(result.run_id, checkpoint="last", registry=ENCODES).step == 6
    monkeypatch.undo()
    monkeypatch.setenv("RLPLUG_HOME", str(home))
    # The first user's key is not that of the other one, who has gone on with the run.
    with pytest.raises(RequestError, match="was not written by this user"):
        load(result.run_id, registry=ENCODES)


def test_options_that_were_changed_after_the_run_wrote_them_are_not_its_own() -> None:
    result = run(Encodes, OneStep, steps=3, options=OFF)
    for file in (result.folder, result.folder / "checkpoints" / "step-000000000003"):
        config = file / "config.toml"
        config.write_text(
            config.read_text().replace('encoder = ""', 'encoder = "foreign_code:Net"')
        )
    manifest = file / "manifest.json"
    content = json.loads(manifest.read_text())
    content["files"]["config.toml"] = hashlib.sha256(config.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(content))
    with pytest.raises(RequestError, match="was not written by this user"):
        load(result.run_id, registry=ENCODES)
    with pytest.raises(RequestError, match="was not written by this user"):
        resume(result.run_id, steps=6, algorithm=Encodes, env=OneStep)
    # Nor is what bears the signature of nobody.
    for signature in (b"\xff", "é".encode(), b""):
        (result.folder / "signature").write_bytes(signature)
        manifest.write_text(json.dumps({**content, "signature": signature.decode("latin")}))
        with pytest.raises(RequestError, match="was not written by this user"):
            resume(result.run_id, steps=6, algorithm=Encodes, env=OneStep)
    assert not was_imported()


def test_where_no_key_can_be_kept_runs_go_on_and_need_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    result = run(Encodes, OneStep, steps=3, options={**OFF, "encoder": "foreign_code:Net"})
    with pytest.raises(RequestError, match="was not written by this user"):
        load(result.run_id, registry=ENCODES)
    assert load(result.run_id, registry=ENCODES, trust=True).step == 3


def test_a_run_that_is_killed_while_mlflow_is_opened_is_its_users_own(
    store_root: Path, warm: Warm
) -> None:
    code = (
        "import os, sys, mlflow\n"
        "mlflow.MlflowClient.log_batch = lambda *one, **more: os.kill(os.getpid(), 9)\n"
        "from rlplug.cli.main import main\n"
        "main(['run', '--algo', 'linucb', '--steps', '100'])\n"
    )
    assert warm.start(code=code).wait() == -signal.SIGKILL
    (folder,) = (store_root / "work").glob("*/")
    assert (folder / "config.toml").exists()
    assert (folder / "signature").exists()
