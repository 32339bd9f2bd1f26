"""Checkpoints that are damaged, or that somebody made up, under digests that are right."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file, save_file

from rlplug import Acted, AddOn, Algorithm, Module, Registry, evaluate, load, option, run
from rlplug.errors import RequestError
from rlplug.feeds import Stream


class Ramp(gymnasium.Env[Any, Any]):
    """Shows 0, 1, 2, 3; two actions."""

    observation_space = spaces.Dict(
        seen=spaces.Box(0, 9, (1,), numpy.float32), kind=spaces.Discrete(2)
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.shown = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.shown += 1
        return self._observation(), 1.0, self.shown == 3, False, {}

    def _observation(self) -> Any:
        return {"seen": numpy.array([self.shown], numpy.float32), "kind": self.shown % 2}


class PlainModule(Module):
    """A weight and a count."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.zeros(len(act.observations["seen"]), numpy.int64))

    forward_inference = forward_exploration


@attrs.frozen(kw_only=True)
class PlainConfig:
    width: int = option(3, "Weights.")


class Plain(Algorithm):
    """Learns nothing."""

    Config = PlainConfig

    def feed(self) -> Stream:
        return Stream()

    def build(self, config: PlainConfig) -> Module:
        return PlainModule(config.width)

    def configure_optimizers_for_module(self) -> None:
        return None


class Keeps(AddOn):
    """Keeps an extra, and a state of its own."""

    def build_extra(self) -> torch.nn.Module:
        return torch.nn.Linear(1, 1)

    def save_state(self) -> dict[str, Any]:
        return {"seen": 1}

    def load_state(self, state: Any) -> None:
        state["seen"] + 1


REGISTRY = Registry.of(plain=Plain, keeps=Keeps)
POLICY = "policy/state.json"
FILES = ("config.toml", POLICY, "training/state.json")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLPLUG_HOME", str(tmp_path_factory.mktemp("runs")))
        options = {"tracking.enabled": False, "env.normalize_observation": True}
        result = run(Plain, Ramp, steps=9, addons=[Keeps()], options=options)
    return result.folder / "checkpoints" / "step-000000000009"


@pytest.fixture
def checkpoint(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / sound.name))


def renew_digests(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    for name in manifest["files"]:
        if (checkpoint / name).is_file():
            manifest["files"][name] = hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest))


def refused(checkpoint: Path) -> str:
    with pytest.raises(RequestError) as raised:
        load(checkpoint, registry=REGISTRY)
    assert str(checkpoint) in str(raised.value)
    return str(raised.value)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[2] ^= 8
    path.write_bytes(content)


def replace_by(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


CONTENTS = ["", "null", "[]", '{"pairs": 3}', "9" * 5_000, '"\\ud800"', "[" * 100_000]
DAMAGES: list[Callable[[Path], Any]] = [
    flip_a_bit,
    Path.unlink,
    replace_by(Path.mkdir),
    replace_by(os.mkfifo),
    replace_by(lambda path: path.symlink_to(path)),
    lambda path: path.write_bytes(path.read_bytes()[:-3]),
    *(partial(Path.write_text, data=text) for text in CONTENTS),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_of_every_file_is_told_with_the_path(
    sound: Path, tmp_path: Path, damage: Any
) -> None:
    names = [str(one.relative_to(sound)) for one in sound.rglob("*") if one.is_file()]
    for number, name in enumerate(names):
        checkpoint = Path(shutil.copytree(sound, tmp_path / f"step-{number}"))
        damage(checkpoint / name)
        with limited():
            refused(checkpoint)
        # With right digests, what only a resumed run would read may be anything.
        if name != "manifest.json" and not name.startswith("training/"):
            renew_digests(checkpoint)
            refused(checkpoint)


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("format", 2, "has format 2, this rlplug reads 4"),
        ("step", "9", "invalid are manifest.json.step: expected int, got str '9'"),
        ("step", -1, "step: 'step' must be >= 0: -1"),
        ("plugins", 3, "plugins: expected table of str, got int 3"),
        ("evaluation", {"eval/return_mean": "x"}, "expected float, got str 'x'"),
        ("strange", 1, "strange: unknown option"),
        ("files", {}, "its manifest.json has no digest of config.toml"),
        ("files", {**dict.fromkeys(FILES, ""), "../x": ""}, "does not match its digest"),
        ("files", None, "files: expected table of str, got NoneType None"),
    ],
)
def test_a_manifest_of_the_wrong_content_is_refused(
    checkpoint: Path, part: str, value: Any, said: str
) -> None:
    path = checkpoint / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), part: value}))
    assert said in refused(checkpoint)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"modules", {"pairs": [["default"',
            '"modules", {"pairs": [["other"',
            "lacks module 'default'",
        ),
        (
            '["keeps", {"pairs": [["weight"',
            '["lost", {"pairs": [["weight"',
            "lacks the extra of 'keeps'",
        ),
        ('["keeps", {"pairs": [["seen", 1]]}]', '["lost", 1]', "lacks the state of plugin 'keeps'"),
        ('["keeps", {"pairs": [["seen", 1]]}]', '["keeps", 3]', "TypeError: 'int' object is not"),
        ('["kind", "Box"]', '["kind", "Cube"]', "space 'Cube' has a type that cannot be stored"),
        ('["kind", "Discrete"], ["n", 2]', '["kind", "Discrete"], ["m", 2]', "KeyError: 'n'"),
        ('["has_id", false]', '["has_id", "no"]', "environment is {'name': 'Ramp', 'has_id': 'no'"),
        ('["moments", [[', '["moments", [3, [', "the options and spaces of the checkpoint"),
        ('["running"', '["walking"', "KeyError: 'running'"),
        ('["environment"', '["place"', "unexpected keyword argument 'place'"),
    ],
)
def test_a_state_of_the_wrong_content_is_refused(
    checkpoint: Path, old: str, new: str, said: str
) -> None:
    text = (checkpoint / POLICY).read_text()
    assert old in text
    (checkpoint / POLICY).write_text(text.replace(old, new))
    renew_digests(checkpoint)
    assert said in refused(checkpoint)


NOT_FINITE = "has numbers that are not finite."


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("/modules/default/weight", None, "KeyError"),
        ("/modules/default/weight", torch.ones(4), "does not fit module 'default'"),
        ("/modules/default/weight", torch.tensor([1, torch.nan, 1]), NOT_FINITE),
        ("/extra/default/keeps/weight", torch.full((1, 1), torch.inf), NOT_FINITE),
        ("/extra/default/keeps/weight", torch.ones(2), "does not fit the extra of plugin 'keeps'"),
        ("/normalization/moments/0/1", torch.ones(2), "statistics of observations have shapes"),
        ("/normalization/moments/0/2", torch.ones(2), "statistics of observations have shapes"),
    ],
)
def test_a_tensor_of_another_kind_is_refused(
    checkpoint: Path, name: str, value: torch.Tensor | None, said: str
) -> None:
    index = json.loads((checkpoint / POLICY).read_text())
    path = checkpoint / "policy" / index["tensors"]
    tensors = load_file(path)
    assert name in tensors
    tensors = (
        {**tensors, name: value}
        if value is not None
        else {one: tensor for one, tensor in tensors.items() if one != name}
    )
    save_file(tensors, path)
    index["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (checkpoint / POLICY).write_text(json.dumps(index))
    renew_digests(checkpoint)
    assert said in refused(checkpoint)


def test_the_command_line_tells_a_damage_without_a_traceback(
    checkpoint: Path, rlplug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint / "manifest.json").write_text("[]")
    for line in (
        ["eval", str(checkpoint)],
        ["run", "--algo", "linucb", "--init-from", str(checkpoint)],
    ):
        done = rlplug(*line)
        assert (done.code, done.out) == (2, "")
        said = (
            f"the checkpoint {checkpoint} is damaged: invalid are manifest.json: expected a section"
        )
        assert done.told.startswith(f"rlplug: error: {said} ")


@pytest.mark.parametrize("tensors", ["/dev/zero", "../../outside", "pipe", 3])
def test_a_state_names_regular_files_of_its_own_folder_alone(
    checkpoint: Path, tensors: Any
) -> None:
    os.mkfifo(checkpoint / "policy" / "pipe")
    index = json.loads((checkpoint / POLICY).read_text())
    (checkpoint.parent / "outside").write_bytes(
        (checkpoint / "policy" / index["tensors"]).read_bytes()
    )
    (checkpoint / POLICY).write_text(json.dumps({**index, "tensors": tensors}))
    renew_digests(checkpoint)
    # Reading the first would take all memory, the third one forever.
    with limited():
        assert "MemoryError" not in refused(checkpoint)


@contextmanager
def limited() -> Iterator[None]:
    """At most 5 seconds, and 4 GiB of memory more than now."""

    def stop(*_: Any) -> None:
        pytest.fail("it reads on and on")

    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**32, before[1]))
    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(5)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_neither_a_run_nor_a_checkpoint_is_named(tmp_path: Path, kind: str) -> None:
    foreign = tmp_path / "policy.zip"
    foreign.write_bytes(b"PK") if kind == "file" else foreign.mkdir()
    said = re.escape(f"{str(foreign)!r} is neither a run nor a checkpoint of rlplug.")
    for call in (load, evaluate):
        with pytest.raises(RequestError, match=said):
            call(foreign)
