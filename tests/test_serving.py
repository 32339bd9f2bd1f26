from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import attrs
import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces

import rlplug
from rlplug import (
    Acted,
    AddOn,
    Algorithm,
    Module,
    Policy,
    Registry,
    build_learner,
    load,
    option,
    run,
)
from rlplug.config import Schedule
from rlplug.errors import PluginError, RequestError
from rlplug.feeds import Stream
from rlplug.spaces import space_from_dict, space_to_dict
from rlplug.trees import read_tree, write_tree

OFF = {"tracking.enabled": False}
Cli = Callable[..., Any]


pytestmark = pytest.mark.usefixtures("home", "installed")


# -- acting -------------------------------------------------------------------------------------


class Sum(Module):
    """Chooses the sum of what it sees; explores by choosing 7."""

    def forward_inference(self, act: Any) -> Acted:
        seen = numpy.asarray(act.observations)
        return Acted(seen.reshape(len(seen), -1).sum(1).astype(numpy.int64))

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.full(len(act.observations), 7) + act.random.integers(0, 2))


def policy(space: Any, module: Module | None = None, actions: int = 1000, **more: Any) -> Policy:
    return Policy(module or Sum(), space, spaces.Discrete(actions), **more)


ROW = spaces.Box(0, 100, (3,), numpy.float32)


def test_one_observation_gives_one_action_and_several_give_as_many() -> None:
    acts = policy(ROW)
    assert acts.predict([1, 2, 3]) == 6
    assert acts.predict(numpy.array([[1, 2, 3], [4, 5, 6]])).tolist() == [6, 15]
    assert acts.predict(numpy.ones((1, 3))).tolist() == [3]


def test_acting_as_in_training_draws_from_the_policy_s_own_seed() -> None:
    def drawn(seed: int) -> list[int]:
        acts = policy(ROW, seed=seed)
        return [int(acts.predict([1, 2, 3], deterministic=False)) for _ in range(20)]

    assert drawn(0) == drawn(0) != drawn(1)
    assert set(drawn(0)) == {7, 8}


@pytest.mark.parametrize(
    ("space", "given", "said"),
    [
        (ROW, [1.0, 2.0], r"has shape \(2,\), expected \(3,\), or \(n, 3\) for n of them"),
        # Of as many axes as several, but of another width, and the other way round.
        (ROW, [[1.0, 2.0], [3.0, 4.0]], r"has shape \(2, 2\), expected \(3,\)"),
        (spaces.Box(0, 1, (2, 3)), [[[1.0, 2.0]]], r"has shape \(1, 1, 2\), expected \(2, 3\)"),
        (spaces.Box(0, 1, (1, 3)), [[[[1, 2, 3]]]], r"has shape \(1, 1, 1, 3\), expected"),
        (ROW, "nonsense", "cannot be read as float32"),
        (ROW, [1, numpy.nan, 3], "observation holds a number that is not finite"),
        (ROW, [[1, 2, 3], [1, 2, numpy.inf]], "holds a number that is not finite"),
        (spaces.Box(0, 255, (2,), numpy.uint8), [1, 300], "must be uint8"),
        (spaces.Discrete(4), 0.5, "must be int64"),
        (spaces.Dict(a=ROW), {"b": [1, 2, 3]}, "a mapping with the keys a"),
        (
            spaces.Dict(a=ROW, b=ROW),
            {"a": [1, 2, 3], "b": [[1, 2, 3]]},
            "disagree on how many there are",
        ),
    ],
)
def test_an_observation_that_does_not_fit_the_space_is_refused(
    space: Any, given: Any, said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        policy(space).predict(given)


class Masked(Module):
    """Chooses the first action that is allowed."""

    def forward_inference(self, act: Any) -> Acted:
        return Acted(act.action_mask.argmax(1))


def test_action_masks_come_beside_the_observation_or_in_it() -> None:
    assert policy(ROW, Masked(), 3).predict([0, 0, 0], action_mask=[False, True, True]) == 1
    inside = spaces.Dict(seen=ROW, action_mask=spaces.MultiBinary(3))
    given = {"seen": [0, 0, 0], "action_mask": numpy.array([0, 0, 1], numpy.int8)}
    assert policy(inside, Masked()).predict(given) == 2


def test_features_of_absent_arms_may_be_any_and_those_of_present_ones_may_not() -> None:
    arms = spaces.Dict(arms=spaces.Box(-1, 1, (3, 2)), action_mask=spaces.MultiBinary(3))
    acts = policy(arms, Masked())
    for absent in (numpy.nan, None, numpy.inf):
        features = [[absent, absent], [0, 0], [1, 1]]
        assert acts.predict({"arms": features, "action_mask": [0, 1, 1]}) == 1
        several = {"arms": [features, features], "action_mask": [[0, 1, 1], [0, 0, 1]]}
        assert acts.predict(several).tolist() == [1, 2]
        several["action_mask"] = [[0, 1, 1], [1, 0, 0]]
        with pytest.raises(RequestError, match=r"observation\['arms'\] holds a number that is not"):
            acts.predict(several)


def test_probabilities_of_one_observation_are_a_row_and_of_several_a_table() -> None:
    one = policy(ROW, Masked(), 3)
    mask = [False, True, True]
    assert one.probabilities([0, 0, 0], action_mask=mask).tolist() == [0, 1, 0]
    table = one.probabilities(numpy.zeros((2, 3)), action_mask=[mask, [True] * 3])
    assert table.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert one.probabilities(numpy.zeros((1, 3)), action_mask=[mask]).shape == (1, 3)


def test_a_mask_that_allows_nothing_is_refused() -> None:
    inside = spaces.Dict(seen=ROW, action_mask=spaces.MultiBinary(2))
    nothing = numpy.zeros((2, 2), numpy.int8)
    with pytest.raises(RequestError, match="the action mask forbids every action"):
        policy(ROW, Masked(), 2).predict([0, 0, 0], action_mask=[False, False])
    with pytest.raises(RequestError, match="the action mask forbids every action"):
        policy(inside, Masked()).predict({"seen": numpy.zeros((2, 3)), "action_mask": nothing})


def test_frames_are_stacked_until_reset_and_the_first_stands_for_those_before_it() -> None:
    acts = policy(spaces.Box(0, 100, (3, 2), numpy.float32), frame_stack=3)
    assert acts.predict([1, 1]) == 6
    assert acts.predict([2, 2]) == 8  # 1 + 1, 1 + 1, 2 + 2
    assert acts.predict([5, 5]) == 16
    acts.reset()
    assert acts.predict([2, 2]) == 12
    # Whole stacks are taken as they are.
    assert acts.predict(numpy.ones((3, 2))) == 6
    assert acts.predict(numpy.ones((4, 3, 2))).tolist() == [6] * 4


class Clock(Module):
    """Chooses how many steps of the episode it remembers."""

    def initial_state(self, n: int) -> Any:
        return {"steps": torch.zeros(n, 1, dtype=torch.int64)}

    def forward_inference(self, act: Any) -> Acted:
        return Acted(act.state["steps"][:, 0], state={"steps": act.state["steps"] + 1})


class ArrayClock(Module):
    """The same, on arrays."""

    def initial_state(self, n: int) -> Any:
        return {"steps": numpy.zeros(n, numpy.int64)}

    def forward_inference(self, act: Any) -> Acted:
        return Acted(act.state["steps"].copy(), state={"steps": act.state["steps"] + 1})


@pytest.mark.parametrize("kind", [Clock, ArrayClock])
def test_memory_lasts_until_reset_or_where_an_episode_is_said_to_start(kind: type[Module]) -> None:
    acts = policy(ROW, kind())
    assert [int(acts.predict([0, 0, 0])) for _ in range(3)] == [0, 1, 2]
    assert acts.predict([0, 0, 0], episode_start=True) == 0
    with pytest.raises(RequestError, match="remembers 1 episodes, and got 2 observations"):
        acts.predict(numpy.zeros((2, 3)))
    acts.reset()
    rows = numpy.zeros((2, 3))
    assert acts.predict(rows).tolist() == [0, 0]
    assert acts.predict(rows, episode_start=[False, True]).tolist() == [1, 0]
    assert acts.predict(rows).tolist() == [2, 1]


def test_real_actions_stay_within_their_bounds() -> None:
    class Wild(Module):
        def forward_inference(self, act: Any) -> Acted:
            return Acted(torch.tensor([[5.0, -0.5]]))

    space = spaces.Box(-1, 1, (2,), numpy.float32)
    assert Policy(Wild(), ROW, space).predict([0, 0, 0]).tolist() == [1.0, -0.5]


@pytest.mark.parametrize(
    "space",
    [
        ROW,
        spaces.Box(numpy.array([-1, -numpy.inf]), numpy.array([1, numpy.inf]), dtype=numpy.float64),
        spaces.Box(0, 255, (4, 4, 1), numpy.uint8),
        spaces.Discrete(5, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        spaces.MultiBinary(4),
        spaces.Dict(b=ROW, a=spaces.Tuple((spaces.Discrete(2), ROW))),
    ],
    ids=str,
)
def test_spaces_survive_being_written_to_disk(space: Any, tmp_path: Path) -> None:
    write_tree(tmp_path, {"space": space_to_dict(space)})
    assert space_from_dict(read_tree(tmp_path)["space"]) == space


class Told(Module):
    """Remembers at which step it acted, and whether gradients were recorded."""

    def forward_inference(self, act: Any) -> Acted:
        self.told = act.timestep, torch.is_grad_enabled()
        return Acted(numpy.zeros(len(act.observations), numpy.int64))

    forward_exploration = forward_inference


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_policy_acts_at_the_step_of_its_training_and_without_gradients(
    deterministic: bool,
) -> None:
    module = Told()
    policy(ROW, module, step=42).predict([0, 0, 0], deterministic)
    assert module.told == (42, False)


# -- out of a run -------------------------------------------------------------------------------


def test_a_loaded_policy_acts_as_the_module_of_the_run(rlplug: Cli) -> None:
    arguments = ["--algo", "linucb", "--steps", "300", "--set", "tracking.enabled=false"]
    done = rlplug("run", *arguments, "--json", "--quiet")
    run_id = json.loads(done.out.splitlines()[-1])["run_id"]
    acts = load(run_id)
    contexts = numpy.random.default_rng(0).normal(size=(50, *(acts.observation_space.shape or ())))
    arms = acts.predict(contexts).tolist()
    assert [int(acts.predict(row)) for row in contexts] == arms
    assert len(set(arms)) > 1
    assert repr(acts) == f"Policy(LinUCBModule of step 300, {acts.path})"
    assert (acts.step, acts.path.name) == (300, "step-000000000300")  # type: ignore[union-attr] # it has one


@attrs.frozen(kw_only=True)
class GainConfig:
    """Options of the algorithm below."""

    gain: float = option(2.0, "Factor.")


class GainModule(Module):
    weight: torch.Tensor

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor(gain))

    def forward_exploration(self, act: Any) -> Acted:
        return self.forward_inference(act)

    def forward_inference(self, act: Any) -> Acted:
        seen = numpy.asarray(act.observations)
        seen = seen.reshape(len(seen), -1)
        return Acted((seen[:, -1:] * self.weight.item()).astype(numpy.float32))


class Gain(Algorithm):
    """Answers with the last number seen times a weight that grows by 1 per update."""

    Config = GainConfig
    presets: ClassVar[Any] = {
        "steep": {"gain": 10.0, "run.steps": 7, "evaluation.every": 3},
        "wrong": {"gian": 1.0},
        "greedy": {"run.addons": ["x"]},
    }

    def feed(self) -> Stream:
        return Stream()

    def build(self, config: GainConfig) -> Module:
        return GainModule(config.gain)

    def configure_optimizers_for_module(self) -> None:
        return None

    def additional_update(self, module: GainModule) -> None:
        module.weight += 1


class Ramp(gymnasium.Env[Any, Any]):
    """Shows 0, 10, 20, …, 90."""

    observation_space = spaces.Box(0, 90, (1,), numpy.float32)
    action_space = spaces.Box(-1000, 1000, (1,), numpy.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.shown = 0.0
        return numpy.array([0.0], numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.shown += 10
        seen = numpy.array([self.shown], numpy.float32)
        return seen, float(action[0]), self.shown == 90, False, {}


GAIN = Registry.of(gain=Gain)


def test_scales_of_observations_come_with_the_policy() -> None:
    result = run(Gain, Ramp, steps=90, options={**OFF, "env.normalize_observation": True})
    acts = load(result.run_id, checkpoint="last", registry=GAIN)
    # Ten episodes: the mean of 0, 10, …, 80 is 40, their variance 2000 / 3.
    scaled = (80 - 40) / (2000 / 3) ** 0.5
    assert acts.predict([80.0])[0] == pytest.approx(92 * scaled, rel=1e-4)
    assert acts.predict([40.0])[0] == pytest.approx(0.0, abs=1e-3)


def test_stacks_of_frames_come_with_the_policy() -> None:
    result = run(Gain, Ramp, steps=9, options={**OFF, "env.frame_stack": 2})
    acts = load(result.run_id, checkpoint="last", registry=GAIN)
    assert acts.observation_space.shape == (2, 1)
    # The last row of the stack is the frame itself; 2 + 9 updates.
    assert acts.predict([20.0])[0] == 220.0
    assert acts.predict([[20.0], [30.0]])[0] == 330.0


class Other(AddOn):
    """Has another module evaluated and served."""

    def build_extra(self) -> torch.nn.Module:
        return GainModule(-3.0)

    def inference_module(self, extra: GainModule) -> Module:
        return extra


def test_what_is_evaluated_and_loaded_is_the_inference_module() -> None:
    result = run(Gain, Ramp, steps=9, addons=[Other()], options=OFF)
    registry = Registry.of(gain=Gain, other=Other)
    assert load(result.run_id, registry=registry).predict([20.0])[0] == -60.0
    # The actions are paid: minus three times 0 + 10 + … + 80.
    assert result.metrics["eval/return_mean"] == -1080.0


@attrs.frozen(kw_only=True)
class KeptConfig:
    more: float = option(0.0, "Added to the factor.", schedulable=True)


class Kept(AddOn):
    """Serves a module made of all that is kept beside one: extra, plugin state, options."""

    Config = KeptConfig

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.updates = 0

    def build_extra(self) -> torch.nn.Module:
        return GainModule(0.0)

    def additional_update(self, extra: GainModule) -> None:
        extra.weight += 1
        self.updates += 1

    def save_state(self) -> Any:
        return {"updates": self.updates}

    def load_state(self, state: Any) -> None:
        self.updates = state["updates"]

    def inference_module(self, extra: GainModule, config: KeptConfig) -> Module:
        return GainModule(extra.weight.item() + 10 * self.updates + config.more)


def test_extras_and_states_of_plugins_and_the_step_of_schedules_come_with_the_policy() -> None:
    growing: Any = Schedule([(0, 0.0), (9, 300.0)])
    result = run(Gain, Ramp, steps=9, addons=[Kept(KeptConfig(more=growing))], options=OFF)
    acts = load(result.run_id, checkpoint="last", registry=Registry.of(gain=Gain, kept=Kept))
    assert acts.predict([1.0])[0] == 9 + 90 + 300


def test_another_version_of_a_plugin_is_said_and_used(caplog: pytest.LogCaptureFixture) -> None:
    result = run("means", steps=20, options=OFF)
    path = result.folder / "checkpoints" / "step-000000000020"
    content = json.loads((path / "manifest.json").read_text())
    content["plugins"]["means"] = "rlplug-means 0.0.9"
    (path / "manifest.json").write_text(json.dumps(content))
    assert load(result.run_id).step == 20
    assert [one.getMessage() for one in caplog.records] == [
        "rlplug: warning: this checkpoint was written by rlplug-means 0.0.9; "
        "rlplug-means 0.1.0 is installed."
    ]


def test_a_run_of_a_class_that_is_not_installed_needs_it() -> None:
    result = run(Gain, Ramp, steps=9, options=OFF)
    with pytest.raises(PluginError, match="unknown algorithm 'gain'"):
        load(result.run_id)
    assert load(result.run_id, registry=GAIN).step == 9


# -- going on from there ------------------------------------------------------------------------


def test_a_run_starts_with_the_weights_of_another(rlplug: Cli) -> None:
    first = run("means", steps=100, options=OFF)
    arguments = ["--algo", "means", "--steps", "50", "--set", "tracking.enabled=false"]
    done = rlplug("run", *arguments, "--init-from", first.run_id, "--json", "--quiet")
    second = json.loads(done.out.splitlines()[-1])
    assert second["step"] == 50
    assert load(second["run_id"]).module.counts.sum() == 150  # type: ignore[operator] # a buffer


def test_weights_that_do_not_fit_are_refused_before_anything_is_recorded(home: Path) -> None:
    first = run("means", steps=20, options=OFF)
    options = {**OFF, "run.init_from": first.run_id, "env.num_arms": 3}
    with pytest.raises(RequestError, match="does not fit module 'default'"):
        run("means", steps=20, options=options)
    assert len(list(home.glob("work/*"))) == 1


def test_weights_that_do_not_fit_are_left_out_where_that_is_asked_for(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space, actions = spaces.Box(-1, 1, (4,), numpy.float32), spaces.Discrete(2)
    quick = {**OFF, "evaluation.episodes": 0, "n_steps": 32, "batch_size": 64}
    first = run("ppo", "CartPole-v1", steps=256, options={**quick, "net_arch": [8, 5]})
    options = {**quick, "run.init_from": first.run_id, "net_arch": [8, 6]}
    with pytest.raises(RequestError, match="does not fit module 'default'"):
        run("ppo", "CartPole-v1", steps=256, options=options)
    still = {"run.init_strict": False, "learning_rate": 0.0}
    second = run("ppo", "CartPole-v1", steps=256, options={**options, **still})
    there, here = first.module.state_dict(), second.module.state_dict()
    fresh = build_learner("ppo", space, actions, options={"net_arch": [8, 6]}).modules["default"]
    alike = {name for name, one in fresh.state_dict().items() if one.shape == there[name].shape}
    assert 0 < len(alike) < len(here)
    for name in alike:
        assert torch.equal(here[name], there[name]), name
    (said,) = [one.getMessage() for one in caplog.records if "run.init_from" in one.getMessage()]
    assert said.startswith("rlplug: run.init_from, module 'default': do not fit: ")
    for name in set(here) - alike:
        assert name in said


def test_weights_that_know_scaled_observations_are_refused_where_they_are_not() -> None:
    scaled = {**OFF, "env.normalize_observation": True, "evaluation.every": 0}
    first = run(Gain, Ramp, steps=9, options=scaled)
    with pytest.raises(RequestError, match=r"try: --set env.normalize_observation=true"):
        run(Gain, Ramp, steps=9, options={**OFF, "run.init_from": first.run_id})
    both = {**scaled, "run.init_from": first.run_id}
    assert run(Gain, Ramp, steps=9, options=both).module.weight == 20.0


# -- rlplug eval --------------------------------------------------------------------------------


def test_eval_plays_exactly_so_many_fresh_episodes(rlplug: Cli) -> None:
    result = run("means", steps=300, options=OFF)
    arguments = ["eval", result.run_id, "--episodes", "37", "--json"]
    one, again = (json.loads(rlplug(*arguments).out) for _ in range(2))
    assert one["metrics"]["eval/episodes"] == 37
    assert (one["step"], one["run_id"]) == (300, result.run_id)

    def returns(told: Any) -> Any:
        return {name: x for name, x in told["metrics"].items() if name.startswith("eval/")}

    assert returns(one) == returns(again)
    other = json.loads(rlplug(*arguments, "--seed", "1").out)
    assert returns(other) != returns(one)
    assert "episodes            37 in LinearBandit-v0, greedy" in rlplug(*arguments[:-1]).out


def test_a_run_in_an_environment_given_in_python_is_evaluated_in_python() -> None:
    result = run(Gain, Ramp, steps=9, options=OFF)
    with pytest.raises(RequestError, match="learned in 'Ramp', which has no id"):
        rlplug.evaluate(result.run_id, registry=GAIN)
    done = rlplug.evaluate(result.run_id, env=Ramp, episodes=3, registry=GAIN)
    # Nine updates made the weight 11; best is the last evaluation, for it pays most.
    assert done.metrics["eval/return_mean"] == 11 * 360.0


class Painted(Ramp):
    """Draws what it shows as grey."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def render(self) -> Any:
        return numpy.full((33, 48, 3), int(self.shown), numpy.uint8)


def test_a_video_shows_every_step_of_an_episode() -> None:
    result = run(Gain, Painted, steps=9, options=OFF)
    done = rlplug.evaluate(result.run_id, env=Painted, episodes=1, video=True, registry=GAIN)
    assert done.video == result.folder / "videos" / "eval-step-000000000009.mp4"
    program = import_module("imageio_ffmpeg").get_ffmpeg_exe()
    command = [program, "-loglevel", "error", "-i", str(done.video), "-f", "rawvideo"]
    decoded = subprocess.run([*command, "-pix_fmt", "gray", "-"], capture_output=True, check=True)
    # Sides are even in a video: 32 × 48.
    frames = numpy.frombuffer(decoded.stdout, numpy.uint8).reshape(-1, 32 * 48)
    assert frames.mean(1) == pytest.approx([0, 10, 20, 30, 40, 50, 60, 70, 80], abs=3)


def test_a_video_of_an_environment_that_draws_nothing_is_refused_before_the_run(home: Path) -> None:
    with pytest.raises(RequestError, match="could not be made with render_mode='rgb_array'"):
        run(Gain, Ramp, steps=8, options={**OFF, "evaluation.video": True})
    assert [one.name for one in home.iterdir()] == ["mlflow.db"]


def test_a_video_without_its_packages_says_which_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = run(Gain, Painted, steps=9, options=OFF)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(RequestError, match=r"try: pip install 'rlplug\[video\]'"):
        rlplug.evaluate(result.run_id, env=Painted, video=True, registry=GAIN)


# -- presets ------------------------------------------------------------------------------------


def test_a_preset_lies_over_the_defaults_and_under_what_a_person_says() -> None:
    options = {**OFF, "run.preset": "steep"}
    result = run(Gain, Ramp, options=options)
    assert (result.step, float(result.module.weight)) == (7, 17.0)  # type: ignore[arg-type] # a buffer
    said = run(Gain, Ramp, steps=2, options={**options, "gain": 1.0})
    assert (said.step, float(said.module.weight)) == (2, 3.0)  # type: ignore[arg-type] # a buffer


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("steeep", r"has no preset 'steeep'. Did you mean 'steep'\?\n  presets: steep, wrong"),
        ("wrong", "preset wrong: gian .*did you mean 'gain'"),
        ("greedy", "preset greedy: run.addons .*cannot be set by a preset"),
    ],
)
def test_a_preset_that_cannot_be_used_is_refused(name: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        run(Gain, Ramp, options={**OFF, "run.preset": name})


def test_each_agent_draws_from_a_seed_of_its_own() -> None:
    from rlplug.seeding import derive
    from rlplug.serving.agents import policies_by_agent

    of_module = policy(ROW, seed=3)
    both = policies_by_agent({"a": "default", "b": "default"}, {"default": of_module}, 3)

    def drawn(acts: Any) -> list[int]:
        return [int(acts.predict([1, 2, 3], deterministic=False)) for _ in range(30)]

    found = {agent: drawn(acts) for agent, acts in both.items()}
    assert found["a"] != found["b"]
    for agent, draws in found.items():
        assert draws == drawn(policy(ROW, seed=derive(3, "agent", agent)))
