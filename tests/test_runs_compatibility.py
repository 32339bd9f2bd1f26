"""What is refused before a run begins, by plugins and because of them, and what is advised."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import gymnasium
import pytest

from rlplug import Algorithm, Module, hookimpl, option
from rlplug.config import not_empty
from rlplug.config.sections import RunConfig, RunSection
from rlplug.envs import make_environments
from rlplug.errors import PluginError, UnsupportedSpaceError
from rlplug.feeds import Feed, Logged, Stream
from rlplug.registry import FoundPlugin, Registry
from rlplug.runs.compatibility import Compatibility
from rlplug.runs.life import check
from rlplug.runs.prepare import prepare
from rlplug.runs.request import Request


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


class BrokenSupports(Whatever):
    supports = raises


class BrokenBuild(Whatever):
    @hookimpl
    def build(self) -> Module:
        raise KeyError("planted")


class Yes(Whatever):
    def supports(self, observation_space: Any, action_space: Any) -> Any:
        return True


def tried(registry: Registry, name: str, env: str = "Pendulum-v1") -> str:
    run = {"algorithm": name, "env": env, "steps": 10}
    return check(prepare(Request(flags={"run": run}), registry))


def test_a_refusal_names_the_installed_algorithms_that_can_and_one_to_try() -> None:
    registry = Registry.of(
        choosy=Choosy, zeta=Whatever, alpha=Whatever, bandit=Bandit, broken=BrokenSupports
    )
    with pytest.raises(UnsupportedSpaceError, match="it needs arms") as raised:
        tried(registry, "choosy")
    assert raised.value.hints == (
        "installed algorithms that support it: alpha, zeta",
        "try: --algo alpha",
    )


@attrs.frozen(kw_only=True)
class ArmsConfig:
    """Options of the algorithm below."""

    arms: str = option("auto", "Which arms.")
    must: str = option("", "Has no default.", not_empty)
    model: str = option("joint", "Which model.")
    alpha: float = option(1.0, "Width.")


class Arms(Whatever):
    """Takes every space, unless it is told which."""

    Config = ArmsConfig

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        if self.config.arms == "none":
            return "there are no arms"
        return None if "fixed" not in (self.config.arms, self.config.model) else "they are not"


@pytest.mark.parametrize(
    ("options", "hints"),
    [
        ({"alpha": 2.0, "arms": "fixed"}, ["try: leave out algorithm.arms"]),
        (
            {"arms": "fixed", "model": "fixed"},
            ["try: leave out algorithm.arms and algorithm.model"],
        ),
    ],
)
def test_a_refusal_names_the_options_without_which_the_algorithm_can(
    options: dict[str, Any], hints: list[str]
) -> None:
    run = {"algorithm": "arms", "env": "Pendulum-v1"}
    with pytest.raises(UnsupportedSpaceError) as raised:
        check(
            prepare(
                Request(flags={"run": run, "algorithm": {**options, "must": "x"}}),
                Registry.of(arms=Arms, other=Whatever),
            )
        )
    assert list(raised.value.hints) == hints


def packaged(distribution: str, name: str, kind: type[Algorithm]) -> FoundPlugin:
    return attrs.evolve(Registry.of(**{name: kind}).found[0], distribution=distribution)


def test_what_fits_best_comes_first() -> None:
    found = (
        packaged("rlplug-choosy", "choosy", Choosy),
        packaged("rlplug-ppo", "a2c", Whatever),
        packaged("rlplug-ppo", "ppo", Whatever),
        packaged("rlplug_dqn", "dqn", Whatever),
        packaged("rlplug-dqn", "rainbow", Whatever),
        packaged("rlplug-linucb", "ucb", Bandit),
        packaged("rlplug-bc", "bc", Imitates),
    )
    for env, names in (
        ("Pendulum-v1", "dqn, ppo, a2c, rainbow"),
        # One for bandits supports nothing but those.
        ("LinearBandit-v0", "ucb, dqn, ppo, a2c, rainbow"),
    ):
        refuses = attrs.evolve(found[0], loaded=type("Never", (Choosy,), {"kind": str}))
        with pytest.raises(UnsupportedSpaceError) as raised:
            tried(Registry((refuses, *found[1:])), "choosy", env)
        assert raised.value.hints[0] == f"installed algorithms that support it: {names}"


class Texts(gymnasium.Env[Any, Any]):
    """Observations that no network reads without an encoder for them."""

    observation_space = gymnasium.spaces.Text(5)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return "text", {}

    def step(self, action: Any) -> Any:
        return "text", 0.0, False, False, {}


@pytest.mark.parametrize("name", ["dqn", "rainbow", "ppo", "a2c", "vdn"])
def test_an_algorithm_that_has_no_encoder_for_observations_is_not_suggested(name: str) -> None:
    gymnasium.register("Texts-v0", Texts)
    try:
        with pytest.raises(UnsupportedSpaceError, match="no encoder for the observations") as told:
            tried(Registry.installed(), name, "Texts-v0")
    finally:
        gymnasium.registry.pop("Texts-v0")
    assert "no other installed algorithm supports it." in told.value.hints


def test_a_refusal_says_so_where_no_installed_algorithm_can() -> None:
    with pytest.raises(UnsupportedSpaceError) as raised:
        tried(Registry.of(choosy=Choosy, bandit=Bandit), "choosy")
    assert raised.value.hints[0] == "no other installed algorithm supports it."


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


@pytest.mark.parametrize(
    ("kind", "what"),
    [(BrokenInit, "__init__"), (BrokenFeed, "feed"), (BrokenSupports, "supports")],
)
def test_an_error_of_a_plugin_before_the_run_names_plugin_and_method(
    kind: type[Algorithm], what: str
) -> None:
    with pytest.raises(PluginError) as raised:
        tried(Registry.of(mine=kind), "mine")
    assert raised.value.message == f"algorithm 'mine' (not installed) failed in {what!r}:"
    assert raised.value.hints[0] == "KeyError: 'planted'"
    assert raised.value.exit_code == 2


def test_an_error_in_build_names_plugin_and_hook() -> None:
    with pytest.raises(PluginError, match="module of algorithm 'mine'") as raised:
        tried(Registry.of(mine=BrokenBuild), "mine")
    assert raised.value.hints[:2] == (
        "KeyError: 'planted'",
        "raised in hook 'build' of algorithm 'mine' (not installed)",
    )


def test_supports_that_gives_no_reason_is_refused() -> None:
    with pytest.raises(PluginError, match=r"supports\(\) returned True") as raised:
        tried(Registry.of(mine=Yes), "mine")
    hint = "try: return None if it supports the spaces, else the reason as a string"
    assert raised.value.hints == (hint,)


def test_a_name_that_two_packages_offer_is_no_advice() -> None:
    twins = (*Registry.of(twin=Whatever).found, *Registry.of(twin=Whatever).found)
    refused, *_ = Registry.of(choosy=Choosy).found
    environments = make_environments("Pendulum-v1", 1, {})
    config = RunConfig(run=RunSection(algorithm="choosy"), algorithm=None)
    advice = Compatibility(environments, "Pendulum-v1", config).suggestions(
        refused, Choosy(Choosy.Config()), Registry(twins)
    )
    environments.vector.close()
    assert advice[0] == "no other installed algorithm supports it."
