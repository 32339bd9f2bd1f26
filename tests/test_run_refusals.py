"""What is refused before a run begins, by plugins and because of them, and what is advised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import attrs
import gymnasium
import pytest

from rlplug import Algorithm, Module, Registry, hookimpl, resume, run
from rlplug.config.sources import settings_of
from rlplug.errors import ConfigError, PluginError, RequestError, RlplugError, UnsupportedSpaceError
from rlplug.feeds import Feed, Logged, Stream
from rlplug.registry import FoundPlugin
from rlplug.runs.kinds import setup_for
from rlplug.runs.life import check
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.rebuilding import installed_versions, refuse_other_versions
from rlplug.runs.request import Request
from rlplug.runs.resume import resumable_by_name
from tests.groups import run_in

OFF = {"tracking.enabled": False}


class Whatever(Algorithm):
    """Takes any space."""

    def feed(self) -> Feed:
        return Stream()

    @hookimpl
    def build(self) -> Module:
        return Module()


class Choosy(Whatever):
    """Takes a few arms."""

    kind: ClassVar[type[Any]] = gymnasium.spaces.Discrete

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        return None if isinstance(action_space, self.kind) else "it needs arms"


class Bandit(Whatever):
    """Takes one step."""

    def feed(self) -> Feed:
        return Stream(one_step_episodes=True)


class Imitates(Whatever):
    """Cannot be suggested for a run without a log."""

    def feed(self) -> Feed:
        return Logged()


def raises(*given: Any, **named: Any) -> Any:
    raise KeyError("planted")


class BrokenInit(Whatever):
    __init__ = raises


class BrokenFeed(Whatever):
    feed = raises


class Feedless(Whatever):
    def feed(self) -> Any:
        return 3


class BrokenSupports(Whatever):
    supports = raises


class BrokenBuild(Whatever):
    @hookimpl
    def build(self) -> Module:
        raise KeyError("planted")


def tried(registry: Registry, name: str, env: str = "Pendulum-v1") -> str:
    chosen = {"algorithm": name, "env": env, "steps": 10}
    return check(prepare(Request(flags={"run": chosen}), registry))


def packaged(distribution: str, name: str, kind: type[Algorithm]) -> FoundPlugin:
    return attrs.evolve(Registry.of(**{name: kind}).found[0], distribution=distribution)


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ("Pendulum-v1", "dqn, ppo, a2c, rainbow"),
        # One for bandits supports nothing but those.
        ("LinearBandit-v0", "ucb, dqn, ppo, a2c, rainbow"),
    ],
)
def test_a_refusal_names_the_installed_algorithms_that_fit_the_best_ones_first(
    env: str, names: str
) -> None:
    found = (
        packaged("rlplug-choosy", "choosy", type("Never", (Choosy,), {"kind": str})),
        packaged("rlplug-ppo", "a2c", Whatever),
        packaged("rlplug-ppo", "ppo", Whatever),
        packaged("rlplug_dqn", "dqn", Whatever),
        packaged("rlplug-dqn", "rainbow", Whatever),
        packaged("rlplug-linucb", "ucb", Bandit),
        packaged("rlplug-bc", "bc", Imitates),
        packaged("broken", "broken", BrokenSupports),
    )
    with pytest.raises(UnsupportedSpaceError, match="it needs arms") as raised:
        tried(Registry(found), "choosy", env)
    assert raised.value.hints[0] == f"installed algorithms that support it: {names}"
    assert raised.value.hints[1] == f"try: --algo {names.partition(',')[0]}"


def test_a_refusal_says_so_where_no_installed_algorithm_can() -> None:
    with pytest.raises(UnsupportedSpaceError) as raised:
        tried(Registry.of(choosy=Choosy, bandit=Bandit), "choosy")
    assert raised.value.hints[0] == "installed algorithms that support it: none"


def test_no_other_algorithm_is_loaded_unless_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str] = []
    load = Registry.load

    def noted(self: Registry, plugin: FoundPlugin) -> Any:
        loaded.append(plugin.name)
        return load(self, plugin)

    monkeypatch.setattr(Registry, "load", noted)
    tried(Registry.of(choosy=Choosy, other=Whatever), "other")
    assert loaded == ["other"]


class Texts(gymnasium.Env[Any, Any]):
    """Observations that no network reads without an encoder for them."""

    observation_space = gymnasium.spaces.Text(5)
    action_space = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize("name", ["dqn", "ppo", "vdn"])
def test_an_algorithm_that_has_no_encoder_for_observations_is_not_suggested(name: str) -> None:
    gymnasium.register("Texts-v0", Texts)
    try:
        with pytest.raises(UnsupportedSpaceError, match="no encoder for the observations") as told:
            tried(Registry.installed(), name, "Texts-v0")
    finally:
        gymnasium.registry.pop("Texts-v0")
    assert "installed algorithms that support it: none" in told.value.hints


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (BrokenInit, "failed in '__init__':"),
        (BrokenFeed, "failed in 'feed':"),
        (Feedless, "feed() returned int."),
        (BrokenSupports, "failed in 'supports':"),
        (BrokenBuild, "could not be built:"),
    ],
)
def test_an_error_of_a_plugin_before_the_run_names_plugin_and_method(
    kind: type[Algorithm], said: str
) -> None:
    with pytest.raises(PluginError) as raised:
        tried(Registry.of(mine=kind), "mine")
    assert "algorithm 'mine' (not installed)" in raised.value.message
    assert said in raised.value.message
    assert kind is Feedless or raised.value.hints[0] == "KeyError: 'planted'"
    assert raised.value.exit_code == 2


def prepared(steps: int = 100, **more: Any) -> Prepared:
    flags = {"run": {"algorithm": "linucb", "env": "LinearBandit-v0", "steps": steps}}
    return prepare(Request(flags=flags, settings=settings_of(more)), Registry.installed())


@pytest.mark.parametrize("given", [{}, {"problem_seed": 7}])
def test_learners_have_the_same_problem_of_a_bandit(given: dict[str, int]) -> None:
    chosen = prepared(**{f"env.{name}": one for name, one in given.items()})
    seeds = set()
    for index in range(2):
        setup = setup_for(chosen, "LinearBandit-v0", index=index, several=True)
        environments = setup.environments()
        seeds.add(environments.vector.unwrapped.problem.problem_seed)
        environments.close()
    (seed,) = seeds
    assert seed is not None
    assert seed == given.get("problem_seed", seed)


def test_versions_must_be_the_same_on_all_hosts() -> None:
    here = installed_versions(Registry.of(walk=Whatever).found)
    assert here["plugin 'walk'"] == "not installed"
    refuse_other_versions(here, {name: one for name, one in here.items() if name != "torch"})
    for there in ({**here, "torch": "torch 1"}, {"plugin 'x'": "x 1"}):
        with pytest.raises(RequestError, match="on host"):
            refuse_other_versions(here, there)


# -- resuming --------------------------------------------------------------------------------------


def test_a_name_of_two_runs_does_not_tell_which_goes_on(home: Path) -> None:
    wanted = prepared()
    assert resumable_by_name("night", wanted) is None
    for run_id in ("a", "b"):
        file = run_in(home, run_id, 0) / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "run_name": "night"}))
    with pytest.raises(RequestError, match=r"2 runs are named 'night': (a, b|b, a)\."):
        resumable_by_name("night", wanted)


def test_a_run_goes_on_with_the_options_that_it_had_or_says_which_are_others(home: Path) -> None:
    first = run("linucb", steps=40, options=OFF)
    with pytest.raises(RequestError, match=r"finished at step 40: there is nothing to resume"):
        resume(first.run_id)
    with pytest.raises(RequestError, match=r"at step 40 already, beyond 30"):
        resume(first.run_id, steps=30, allow_drift=True)
    for steps, options, said in (
        (30, {}, "run.steps: 40 → 30"),
        (80, {"alpha": 0.5}, "algorithm.alpha: 1.0 → 0.5"),
    ):
        with pytest.raises(RequestError, match=said):
            resume(first.run_id, steps=steps, options=options)
    with pytest.raises(RequestError, match=r"sampling.num_envs = 1 and cannot go on with 2"):
        resume(first.run_id, steps=80, options={"num_envs": 2}, allow_drift=True)
    longer = resume(first.run_id, steps=80, options={"alpha": 0.5}, allow_drift=True)
    # An earlier change is none for those that come after it.
    assert resume(longer.run_id, steps=90).step == 90


def test_a_secret_that_was_not_recorded_is_asked_for(home: Path) -> None:
    secret = {**OFF, "env.api_key": "***"}
    with pytest.raises(RlplugError, match="was not recorded"):
        run("linucb", "LinearBandit-v0", steps=10, options=secret)


def test_what_stands_in_place_of_a_section_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("sampling = 3\n[run]\nalgorithm = 'linucb'\n")
    with pytest.raises(ConfigError, match=r"expected a section \[sampling\], got 3"):
        prepare(Request(config=file), Registry.installed())
    file.write_text("[run]\nalgorithm = 'linucb'\n[samplign]\n[addons.rnd]\n")
    with pytest.raises(ConfigError) as raised:
        prepare(Request(config=file), Registry.installed())
    assert [(one.path, one.message) for one in raised.value.problems] == [
        ("samplign", "unknown section, did you mean 'sampling'?"),
        ("addons.rnd", "this add-on is not used: add --with rnd"),
    ]
