"""A plugin built against the hooks of this version keeps running when a hook gains an argument."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplug import AddOn, Algorithm, Module, hookimpl
from rlplug.errors import PluginWarning
from rlplug.hooks import binding, hookspec
from rlplug.hooks.binding import HOOKS, bind, deprecations
from rlplug.hooks.events import RunHooks
from rlplug.hooks.specs import LearnerHooks
from rlplug.registry import Participant, describe


class Built(Algorithm):
    def build(self) -> Module:
        return Module()


class Old(AddOn):
    """Takes what the hook offers today."""

    def metrics_reported(self, step: int, metrics: Any) -> None:
        self.seen = (step, metrics)


class New(AddOn):
    """Takes what a later version adds."""

    def metrics_reported(self, step: int, seconds: float) -> None:
        self.seen = (step, seconds)


class LaterEvents(RunHooks):
    @hookspec
    def metrics_reported(self, step: int, metrics: Any, seconds: float = 0.0) -> None:
        """It brings the seconds, too."""


class LaterLearning(LearnerHooks):
    @hookspec(
        warn_on_impl_args={"seed": PluginWarning("'seed' is dropped in 0.3; take 'generator'")}
    )
    def build(
        self, module_id: str, observation_space: Any, action_space: Any, config: Any, seed: int
    ) -> Module:  # type: ignore[empty-body]
        """As before, but `seed` will go."""


def participant(kind: type[Any]) -> Participant:
    return Participant(describe(kind.__name__.lower(), kind), kind(), kind().config)


def test_a_hook_that_gains_an_argument_calls_old_plugins_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binding, "RunHooks", LaterEvents)
    monkeypatch.setitem(HOOKS, "metrics_reported", ("step", "metrics", "seconds"))
    old, new = participant(Old), participant(New)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bound = bind([participant(Built), old, new])["metrics_reported"]
    for implementation in bound:
        implementation((7, {"loss": 1.0}, 2.5))
    assert old.plugin.seen == (7, {"loss": 1.0})
    assert new.plugin.seen == (7, 2.5)


class Seeded(Algorithm):
    def build(self, seed: int) -> Module:
        return Module()


def test_a_dropped_argument_warns_first_and_is_still_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binding, "LearnerHooks", LaterLearning)
    with pytest.warns(PluginWarning, match="'seed' is dropped in 0.3; take 'generator'") as told:
        bound = bind([participant(Seeded)])["build"]
    # Python shows the line of the plugin, not of the core.
    assert told[0].filename == __file__
    assert type(bound[0](("default", 0, 0, 3))) is Module
    assert deprecations(participant(Seeded)) == ["'seed' is dropped in 0.3; take 'generator'"]
    assert deprecations(participant(Built)) == []


class ForLater(AddOn):
    @hookimpl(optionalhook=True)
    def episode_finished(self, episode: Any) -> None:
        """A hook of a newer core."""


def test_a_hook_of_a_newer_version_may_be_optional() -> None:
    assert not bind([participant(Built), participant(ForLater)])["run_started"]


def test_nothing_is_deprecated_now() -> None:
    for specs in (LearnerHooks, RunHooks):
        for name in HOOKS:
            options = getattr(getattr(specs, name, None), "rlplug_spec", None) or {}
            assert not options.get("warn_on_impl"), name
            assert not options.get("warn_on_impl_args"), name


def test_a_check_lists_versions_clashes_and_what_cannot_be_used(
    rlplug: Callable[..., Any], installed: Path
) -> None:
    done = rlplug("plugins", "list", "--check")
    assert done.code == 1
    lines = done.out.splitlines()
    assert any(line.split()[0] == "torch" for line in lines if line)
    rows = {tuple(line.split()[:2]): line for line in lines}
    assert rows["algorithm", "good"].split()[4] == "ok"
    assert "twin-one" in rows["algorithm", "twin"]
    assert "clash" in rows["algorithm", "twin"]
