"""Learners with built modules: of a run, of a checkpoint, or alone, for loops of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from rlplug.config.sections import ComputeSection, LearnerSection, RunConfig
from rlplug.config.sources import settings_of
from rlplug.errors import (
    ConfigError,
    PluginError,
    Problem,
    RequestError,
    RlplugError,
    did_you_mean,
)
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.plugin import DEFAULT_MODULE, Algorithm
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import InlinePlugins, Request

if TYPE_CHECKING:
    from rlplug.plugin import AddOn
    from rlplug.spaces import AnySpace

__all__ = ["build_learner", "make_learner", "train_modules"]


def build_learner(
    algorithm: str | type[Algorithm],
    observation_space: AnySpace | None = None,
    action_space: AnySpace | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    modules: Mapping[str, tuple[AnySpace, AnySpace]] | None = None,
    module_options: Mapping[str, Mapping[str, Any]] | None = None,
    addons: Sequence[str | AddOn] = (),
    seed: int = 0,
) -> Learner:
    """A built learner: `build_learner("ppo", env.observation_space, env.action_space)`.

    It has the module `default` for these spaces, or one for each pair of observation and action
    space in `modules`. `options` have the keys of `--set`; those of the loop of a run, such as
    `run.steps`, have no effect. `module_options` are options of the algorithm that one module alone
    has, by module id. `seed` is `run.seed`.
    """
    spaces = dict(modules or {})
    if observation_space is not None and action_space is not None:
        spaces[DEFAULT_MODULE] = (observation_space, action_space)
    elif observation_space is not None or action_space is not None or not spaces:
        raise RequestError(
            "a learner needs an observation space and an action space.",
            'try: build_learner("ppo", env.observation_space, env.action_space)',
        )
    plugins = InlinePlugins.of(algorithm, addons)
    chosen = {"algorithm": plugins.algorithm, "addons": list(plugins.addons), "seed": seed}
    request = Request(
        flags={"run": chosen},
        settings=settings_of(options),
        flags_origin="arguments of build_learner",
    )
    prepared = prepare(request, plugins.registry, plugins.instances)
    learner = make_learner(
        prepared,
        prepared.hooks(),
        spaces,
        prepared.config.compute,
        module_options=module_options or {},
    )
    train_modules(learner, prepared.config)
    return learner


def make_learner(
    prepared: Prepared,
    calls: HookCalls,
    spaces: Mapping[str, tuple[AnySpace, AnySpace]],
    compute: ComputeSection,
    *,
    training_spaces: Mapping[str, AnySpace] | None = None,
    module_options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Learner:
    """The learner of a run with its modules, or what is wrong with them or with their plugin."""
    config = prepared.config
    learner = Learner(
        calls,
        spaces,
        training_spaces=training_spaces or {},
        seed=config.run.seed,
        learning=config.learner,
        compute=compute,
    )
    for module_id, section in config.modules.items():
        learner.set_options(module_id, section.options)
    for module_id, options in (module_options or {}).items():
        learner.set_options(module_id, options)
    try:
        learner.build()
    except RlplugError:
        raise
    except Exception as error:
        raise PluginError(
            f"the module of {prepared.algorithm.label} could not be built:",
            f"{type(error).__name__}: {error}",
            *getattr(error, "__notes__", ()),
            "try: other options, or fix the plugin     (--debug shows the traceback)",
        ) from error
    return learner


def train_modules(learner: Learner, config: RunConfig) -> None:
    """Train the modules of `learner.modules_to_train`, and let the others only act."""
    patterns = config.learner.modules_to_train
    if patterns == LearnerSection().modules_to_train:
        return
    wanted: set[str] = set()
    for pattern in patterns:
        matching = {name for name in learner.modules if fnmatchcase(name, pattern)}
        if not matching:
            guess = did_you_mean(pattern, learner.modules)
            said = f"no module is named {pattern!r}" + (f", {guess}" if guess else "")
            problem = Problem("learner.modules_to_train", said)
            raise ConfigError("the options", [problem], f"modules: {', '.join(learner.modules)}")
        wanted |= matching
    learner.modules_to_train = wanted
