"""Models in MLflow as pyfuncs: what MLflow loads and serves acts as the policy of the run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy
import pandas
import pytest
import torch
from gymnasium import spaces

import rlplug as package
from rlplug import Acted, Module, Policy
from rlplug.checkpoint.trust import own_copy
from rlplug.errors import RequestError
from rlplug.runs.pyfunc import PolicyModel, _load_pyfunc
from rlplug.serving.description import flatten, nest, requirements, signature_of
from rlplug.tracking.server import free_port
from rlplug.tracking.status import known_models
from tests.log_files import write

if TYPE_CHECKING:
    from mlflow.pyfunc import PyFuncModel

ONCE = {"evaluation.episodes": 1, "evaluation.parallel": 1, "evaluation.every": 0}
BOX = spaces.Box(-1, 1, (3,), numpy.float32)


class Room(gymnasium.Env[Any, Any]):
    """Parts in its observations and its actions, and a mask beside them."""

    observation_space = spaces.Dict(
        place=BOX,
        seen=spaces.Tuple((spaces.Discrete(4), spaces.Box(0, 255, (2,), numpy.uint8))),
        action_mask=spaces.MultiBinary(3),
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 4
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return self._seen(), 1.0, self.left == 0, False, {}

    def _seen(self) -> Any:
        parts = (numpy.int64(self.left % 4), numpy.array([self.left, 9], numpy.uint8))
        mask = numpy.array([1, self.left % 2, 1], numpy.int8)
        return {
            "place": self.np_random.random(3).astype("f4"),
            "seen": parts,
            "action_mask": mask,
        }


@pytest.fixture
def store(store_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MLflow's own settings are those of the runs folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store_root / 'mlflow.db'}")
    return store_root


def trained(algorithm: str, env: Any, steps: int, **options: Any) -> tuple[str, str]:
    """The id of a run, and the URI of its model."""
    done = package.run(algorithm, env, steps=steps, options={**ONCE, **options})
    (model_id,) = known_models(done.folder).values()
    return done.run_id, f"models:/{model_id}"


def loaded(uri: str) -> PyFuncModel:
    with warnings.catch_warnings():
        # Its types have no hints that it likes.
        warnings.filterwarnings("ignore", ".*Any type hint is inferred", UserWarning)
        from mlflow import pyfunc

        return pyfunc.load_model(uri)


def drawn(shape: tuple[int, ...], seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).normal(size=shape)


def test_a_policy_of_names_takes_tables_and_returns_names(
    store: Path, rlplug: Callable[..., Any]
) -> None:
    from mlflow.exceptions import MlflowException

    random = numpy.random.default_rng(0)
    colors, shown = (numpy.array(["a", "b", "c"])[random.integers(0, 3, 300)] for _ in range(2))
    table = {"color": colors, "age": random.random(300), "shown": shown, "hit": colors == shown}
    options = {"data.context": "color,age", "data.action": "shown", "data.reward": "hit"}
    done = package.run("linucb", data=write(store / "log.npz", table), options=options)
    promoted = rlplug("promote", done.run_id, "shop")
    assert promoted.code == 0, promoted.err
    model = loaded("models:/shop/1")
    rows = pandas.DataFrame({"color": ["c", "a"], "age": [0.5, 0.1]})
    assert list(model.predict(rows)) == ["c", "a"]
    assert model.metadata.signature.inputs.input_names() == ["color", "age"]
    with pytest.raises(MlflowException, match="color"):
        model.predict(rows[["age"]])


def test_a_linear_bandit_predicts_as_the_policy_and_in_under_two_milliseconds(store: Path) -> None:
    run, uri = trained("linucb", "LinearBandit-v0", 400)
    model, policy = loaded(uri), package.load(run)
    rows = drawn((50, 8))
    assert model.predict(rows).tolist() == policy.predict(rows).tolist()
    assert len(set(model.predict(rows).tolist())) > 1
    allowed = numpy.arange(10) < 2
    masks = [bool(one) for _ in rows for one in allowed]
    chosen = model.predict(rows, {"action_mask": masks})
    assert set(chosen.tolist()) == {0, 1}
    assert chosen.tolist() == policy.predict(rows, action_mask=allowed[None].repeat(50, 0)).tolist()
    taken = []
    for _ in range(200):
        before = time.perf_counter()
        model.predict(rows[:1])
        taken.append(time.perf_counter() - before)
    assert sorted(taken)[100] < 0.002
    assert model.get_raw_model().step == 400


def test_scaled_and_stacked_observations_are_taken_as_they_come(store: Path) -> None:
    options = {"env.normalize_observation": True, "env.frame_stack": 3, "n_steps": 64}
    run, uri = trained("ppo", "CartPole-v1", 256, **options)
    model, policy = loaded(uri), package.load(run)
    assert policy.normalization is not None
    stacks = drawn((40, 3, 4)).astype("f4")
    assert model.predict(stacks).tolist() == policy.predict(stacks).tolist()
    # Single frames are stacked in a session, as the policy does.
    frames = drawn((12, 4), 1).astype("f4")
    expected = [int(policy.predict(frame)) for frame in frames]
    for session in ("a", "b"):
        acted = [model.predict(one[None, None], {"session": session}) for one in frames]
        assert [one.tolist() for one in acted] == [[each] for each in expected]
    policy.reset()
    alone = [int(policy.predict(frame)) for frame in frames if policy.reset() is None]
    assert [int(model.predict(one[None, None])[0]) for one in frames] == alone
    with pytest.raises(Exception, match="12 observations of a single frame each"):
        model.predict(frames[:, None])


def test_discrete_observations_and_masks(store: Path) -> None:
    options = {"learning_starts": 20, "buffer_size": 200}
    run, uri = trained("dqn", "FrozenLake-v1", 200, **options)
    model, policy = loaded(uri), package.load(run)
    rows = numpy.arange(16)
    assert model.predict(rows).tolist() == policy.predict(rows).tolist()
    masks = numpy.arange(4) == (rows % 4)[:, None]
    chosen = model.predict(rows, {"action_mask": masks.ravel().tolist()})
    assert chosen.tolist() == (rows % 4).tolist()
    with pytest.raises(Exception, match=r"action_mask has 3 values, expected 64: 4 for each of 16"):
        model.predict(rows, {"action_mask": [True] * 3})
    explored = {
        int(one)
        for _ in range(40)
        for one in model.predict(rows[:1].repeat(20), {"deterministic": False})
    }
    assert len(explored) > 1


def test_recurrent_state_lasts_for_a_session(store: Path) -> None:
    run, uri = trained("ppo", "CartPole-v1", 256, memory="lstm", memory_size=8, n_steps=64)
    model, policy = loaded(uri), package.load(run)
    rows = (4 * drawn((60, 4))).astype("f4")
    expected = [int(policy.predict(row)) for row in rows]
    acted = [int(model.predict(row[None], {"session": "x"})[0]) for row in rows]
    assert acted == expected
    forgetful = [int(model.predict(row[None])[0]) for row in rows]
    policy.reset()
    assert forgetful == [int(policy.predict(row)) for row in rows if policy.reset() is None]
    # The sequence begins anew with `reset`, and only then.
    first = {"session": "x", "reset": True}
    again = [
        int(model.predict(row[None], first if index == 0 else {"session": "x"})[0])
        for index, row in enumerate(rows)
    ]
    assert again == expected
    with pytest.raises(Exception, match="remembers 1 episodes, and got 2 observations"):
        model.predict(rows[:2], {"session": "x"})


def test_parts_of_observations_are_named_inputs(store: Path) -> None:
    run, uri = trained("ppo", Room, 128, n_steps=32)
    model, policy = loaded(uri), package.load(run)
    names = [one.name for one in model.metadata.get_input_schema().inputs]
    assert names == ["place", "seen.0", "seen.1", "action_mask"]
    seen = Room().reset(seed=3)[0]
    one = {
        "action_mask": seen["action_mask"][None],
        "place": seen["place"][None],
        "seen.0": seen["seen"][0][None],
        "seen.1": seen["seen"][1][None],
    }
    assert model.predict(one).tolist() == [int(policy.predict(seen))]
    one["action_mask"] = numpy.array([[0, 1, 0]], numpy.int8)
    assert model.predict(one).tolist() == [1]
    one["action_mask"] = numpy.zeros((1, 3), numpy.int8)
    with pytest.raises(Exception, match="the action mask forbids every action"):
        model.predict(one)


def test_a_model_names_what_it_takes_and_needs(store: Path) -> None:
    from mlflow.models import get_model_info

    _, uri = trained("ppo", "CartPole-v1", 128, n_steps=32)
    model = loaded(uri)
    info = get_model_info(uri)
    assert [str(one.type) for one in info.signature.inputs.inputs] == ["float32"]
    assert [one.name for one in info.signature.params] == [
        "deterministic",
        "session",
        "reset",
        "action_mask",
    ]
    (needed,) = store.rglob("requirements.txt")
    names = dict(line.split("==") for line in needed.read_text().split())
    assert set(names) == {"rlplug", "rlplug-ppo", "torch", "numpy", "gymnasium", "mlflow"}
    assert names["torch"] == metadata.version("torch").partition("+")[0]
    with pytest.raises(Exception, match="Shape of input"):
        model.predict(numpy.zeros((1, 5), "f4"))


def test_a_model_holds_neither_code_nor_pickles(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    _, uri = trained("linucb", "LinearBandit-v0", 200)
    assert loaded(uri).predict(drawn((2, 8))).shape == (2,)
    (folder,) = store.glob("artifacts/*/models/*/artifacts")
    kinds = {one.suffix for one in folder.rglob("*") if one.is_file()}
    assert kinds == {"", ".json", ".toml", ".txt", ".yaml", ".safetensors"}


def test_a_model_of_somebody_else_imports_no_code_unless_it_is_trusted(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, uri = trained("ppo", "CartPole-v1", 128, n_steps=32)
    (config,) = store.glob("artifacts/*/models/*/artifacts/checkpoint/config.toml")
    assert loaded(uri).predict(numpy.zeros((1, 4), "f4")).shape == (1,)
    folder = store / "work" / run
    text = config.read_text().replace('encoder = "auto"', 'encoder = "evil.module:Encoder"')
    assert "evil" in text
    shutil.rmtree(folder)
    config.write_text(text)
    with pytest.raises(RequestError, match="names code to import") as refused:
        loaded(uri)
    assert "in MLflow: RLPLUG_TRUST=true), if you trust who made it" in str(refused.value)
    monkeypatch.setenv("RLPLUG_TRUST", "true")
    with pytest.raises(RequestError, match="evil"):
        loaded(uri)


def test_a_model_of_a_plugin_that_is_not_installed_names_it(store: Path) -> None:
    _, uri = trained("linucb", "LinearBandit-v0", 200)
    (config,) = store.glob("artifacts/*/models/*/artifacts/checkpoint/config.toml")
    text = config.read_text().replace('algorithm = "linucb"', 'algorithm = "lost"')
    config.unlink()
    config.write_text(text)
    manifest = config.with_name("manifest.json")
    content = manifest.read_text().replace('"step": 200', '"step": 201')
    manifest.unlink()
    manifest.write_text(content)
    with pytest.raises(RequestError, match="lost"):
        loaded(uri)


# -- served by MLflow -----------------------------------------------------------------------------


@pytest.fixture
def serve(store: Path, first_port: int) -> Iterator[Callable[[str], str]]:
    """Serve a model with `mlflow models serve`; returns its URL."""
    running: list[subprocess.Popen[bytes]] = []
    log = store / "serving.log"

    def start(uri: str) -> str:
        port = free_port("127.0.0.1", first_port + 40)
        # MLflow finds uvicorn by the search path.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", uri]
        command += ["--env-manager", "local", "--port", str(port)]
        with log.open("wb") as out:
            running.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, "PATH": path},
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 90
        while time.monotonic() < until and running[-1].poll() is None:
            try:
                urllib.request.urlopen(f"{url}/ping", timeout=5).close()
            except OSError:
                time.sleep(0.2)
            else:
                return url
        raise AssertionError(log.read_text())

    yield start
    for one in running:
        os.killpg(one.pid, signal.SIGTERM)
        one.wait(30)


def asked(url: str, **body: Any) -> Any:
    request = urllib.request.Request(
        f"{url}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["predictions"]


def test_mlflow_serves_a_promoted_model_with_sessions(
    store: Path, serve: Callable[[str], str], rlplug: Callable[..., Any]
) -> None:
    run, _ = trained("ppo", "CartPole-v1", 256, memory="lstm", memory_size=8, n_steps=64)
    assert rlplug("promote", run, "pole").code == 0
    url = serve("models:/pole@champion")
    policy = package.load("models:/pole@champion")
    rows = (4 * drawn((30, 4))).astype("f4")
    expected = [int(policy.predict(row)) for row in rows]
    params = {"session": "mine"}
    assert [asked(url, inputs=[row.tolist()], params=params)[0] for row in rows] == expected
    policy.reset()
    assert asked(url, inputs=rows.tolist()) == policy.predict(rows).tolist()
    with pytest.raises(urllib.error.HTTPError) as refused:
        asked(url, inputs=rows.tolist(), params=params)
    assert refused.value.code == 400
    assert (
        "the policy remembers 1 episodes, and got 30 observations" in refused.value.read().decode()
    )


# -- what a model takes and gives -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (BOX, numpy.ones((2, 3))),
        (spaces.Discrete(3), numpy.array([0, 2])),
        (spaces.Dict(a=BOX, b=spaces.Discrete(2)), {"a": numpy.ones((2, 3)), "b": numpy.ones(2)}),
        (
            spaces.Dict(a=spaces.Dict(b=spaces.Tuple((BOX, BOX)))),
            {"a": {"b": (numpy.ones((1, 3)), numpy.zeros((1, 3)))}},
        ),
    ],
)
def test_nested_arrays_are_named_by_their_paths_and_nested_again(space: Any, values: Any) -> None:
    flat = flatten(values)
    signature = signature_of(space, spaces.Discrete(2))
    if isinstance(space, spaces.Dict):
        assert list(flat) == [one["name"] for one in signature["inputs"]]
    again = nest(space, flat)
    numpy.testing.assert_equal(again, values)


@pytest.mark.parametrize(("frame_stack", "shape"), [(1, [-1, 4, 3]), (2, [-1, -1, 3])])
def test_a_signature_has_every_array_and_its_parameters(frame_stack: int, shape: list[int]) -> None:
    space = spaces.Box(0, 5, (4, 3), numpy.float32)
    assert signature_of(space, spaces.Discrete(2), frame_stack) == {
        "inputs": [{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": shape}}],
        "outputs": [{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1]}}],
        "params": [
            {"name": "deterministic", "type": "boolean", "default": True, "shape": None},
            {"name": "session", "type": "string", "default": "", "shape": None},
            {"name": "reset", "type": "boolean", "default": False, "shape": None},
            {"name": "action_mask", "type": "boolean", "default": [], "shape": [-1]},
        ],
    }


def test_a_space_that_cannot_be_stored_has_no_signature() -> None:
    assert signature_of(spaces.Sequence(BOX), spaces.Discrete(2)) == {}


def test_actions_with_several_parts_are_named_and_bounded_ones_take_no_mask() -> None:
    action = spaces.Dict(turn=spaces.Discrete(3), force=BOX)
    signature = signature_of(BOX, action)
    assert [one["name"] for one in signature["outputs"]] == ["turn", "force"]
    assert "action_mask" not in [one["name"] for one in signature["params"]]


@pytest.mark.parametrize(
    ("space", "given", "said"),
    [
        (BOX, {"a": numpy.ones(3)}, "this policy takes one array"),
        (spaces.Dict(a=BOX), numpy.ones(3), "several arrays, found ndarray"),
        (spaces.Dict(a=BOX, b=BOX), {"a": numpy.ones(3)}, "there is no 'b' among the inputs"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(space: Any, given: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        nest(space, given)


def test_a_plugin_that_was_passed_from_python_is_no_requirement() -> None:
    assert "not installed" not in "".join(requirements(["not installed", "rlplug-ppo"]))


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is not a checkpoint"):
        _load_pyfunc(str(tmp_path))


class Clock(Module):
    """Chooses how many steps of the episode it remembers."""

    def initial_state(self, n: int) -> Any:
        return {"steps": torch.zeros(n, 1, dtype=torch.int64)}

    def forward_inference(self, act: Any) -> Acted:
        return Acted(act.state["steps"][:, 0], state={"steps": act.state["steps"] + 1})


def test_each_session_has_its_own_state_until_reset() -> None:
    model = PolicyModel(Policy(Clock(), BOX, spaces.Discrete(9)), most_sessions=2)
    row = numpy.zeros((1, 3), "f4")

    def acts(**params: Any) -> int:
        (action,) = model.predict(row, params)
        return int(action)

    assert [acts(session="a"), acts(session="a"), acts(session="b")] == [0, 1, 0]
    assert [acts(), acts(), acts(session="a")] == [0, 0, 2]
    assert [acts(session="a", reset=True), acts(session="a")] == [0, 1]
    # A third one evicts the one unused for longest.
    assert [acts(session="c"), acts(session="a"), acts(session="b")] == [0, 2, 0]


def test_a_model_of_another_course_of_the_run_is_not_taken_from_its_folder(store: Path) -> None:
    run, _ = trained("linucb", "LinearBandit-v0", 200)
    (model,) = store.glob("artifacts/*/models/*/artifacts/checkpoint")
    own = store / "work" / run / "checkpoints" / "step-000000000200"
    assert own_copy(model) == own
    facts = json.loads((own / "manifest.json").read_text())
    (own / "manifest.json").unlink()
    (own / "manifest.json").write_text(json.dumps({**facts, "state_digest": "of another"}))
    assert own_copy(model) == model


def test_masks_for_actions_without_choices_are_refused() -> None:
    from mlflow.exceptions import MlflowException

    class Zero(Module):
        def forward_inference(self, act: Any) -> Acted:
            return Acted(numpy.zeros((len(act.observations), 3)))

    model = PolicyModel(Policy(Zero(), BOX, BOX))
    assert model.predict(numpy.zeros((2, 3))).shape == (2, 3)
    with pytest.raises(MlflowException, match="this policy cannot use a mask"):
        model.predict(numpy.zeros((2, 3)), {"action_mask": [True]})
