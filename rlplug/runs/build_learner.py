"""A learner by itself: for people who write the loop around it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlplug.config.sections import LearnerSection
from rlplug.config.sources import settings_of
from rlplug.errors import ConfigError, Problem, RequestError
from rlplug.learner import Learner
from rlplug.plugin import DEFAULT_MODULE, Algorithm
from rlplug.quantities import is_whole_number
from rlplug.registry import Registry
from rlplug.runs.components import built, train_modules
from rlplug.runs.inline_plugins import InlinePlugins
from rlplug.runs.prepare import prepare
from rlplug.runs.request import Request

if TYPE_CHECKING:
    from rlplug.plugin import AddOn
    from rlplug.spaces import AnySpace

__all__ = ["build_learner"]


def build_learner(
    algorithm: str | type[Algorithm],
    observation_space: AnySpace | None = None,
    action_space: AnySpace | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    modules: Mapping[str, tuple[AnySpace, AnySpace]] | None = None,
    module_options: Mapping[str, Mapping[str, Any]] | None = None,
    addons: Sequence[str | AddOn] = (),
    seed: int | None = None,
) -> Learner:
    """A built learner: `build_learner("ppo", env.observation_space, env.action_space)`.

    It has the module `default` for these spaces, or one for each pair of observation and action
    space in `modules`. `options` have the keys of `--set`; those of the loop of a run, such as
    `run.steps`, have no effect. `module_options` are options of the algorithm that one module alone
    has, by module id. `seed` is `run.seed`, 0 unless given.
    """
    for name, given in (
        ("modules", modules),
        ("module_options", module_options),
    ):
        if given is not None and not isinstance(given, Mapping):
            raise RequestError(
                f"{name} of build_learner is a {type(given).__name__}, not a mapping.",
                f"try: {name}={{{_EXAMPLES[name]}}}",
            )
    spaces = dict(modules or {})
    if observation_space is not None and action_space is not None:
        if DEFAULT_MODULE in spaces:
            raise RequestError(
                f"the spaces of module {DEFAULT_MODULE!r} are given twice.",
                f"try: by position, or modules={{{DEFAULT_MODULE!r}: …}}",
            )
        spaces[DEFAULT_MODULE] = (observation_space, action_space)
    elif observation_space is not None or action_space is not None or not spaces:
        raise RequestError(
            "a learner needs an observation space and an action space.",
            'try: build_learner("ppo", env.observation_space, env.action_space)',
        )
    plugins = InlinePlugins.of(algorithm, addons, Registry.installed())
    request = Request(
        flags={
            "run": {
                "algorithm": plugins.algorithm,
                "addons": list(plugins.addons),
                **({} if seed is None else {"seed": int(seed) if is_whole_number(seed) else seed}),
            }
        },
        settings=settings_of(options),
        flags_origin="arguments of build_learner",
    )
    prepared = prepare(request, plugins.registry, plugins.instances)
    _refuse_options_of_runs(prepared.config.learner)
    learner = Learner(
        prepared.hooks(),
        spaces,
        seed=prepared.config.run.seed,
        learning=prepared.config.learner,
        compute=prepared.config.compute,
    )
    for module_id, section in prepared.config.modules.items():
        _check_built("options", module_id, spaces)
        learner.set_options(module_id, section.options)
    for module_id, its in (module_options or {}).items():
        _check_built("module_options", module_id, spaces)
        by_options = prepared.config.modules.get(module_id)
        if by_options is not None and (twice := sorted(its.keys() & by_options.options.keys())):
            raise RequestError(
                f"options of module {module_id!r} are given twice: {', '.join(twice)}.",
                "try: options or module_options",
            )
        learner.set_options(module_id, its)
    built(learner, prepared)
    train_modules(learner, prepared.config)
    return learner


def _refuse_options_of_runs(section: LearnerSection) -> None:
    """Refuse what the loop of a run carries out, and a learner by itself does not."""
    problems = [
        Problem(f"learner.{name}", f"is for runs; by hand, {instead}")
        for name, instead in _OF_RUNS.items()
        if getattr(section, name) != getattr(LearnerSection(), name)
    ]
    if problems:
        raise ConfigError("the options of build_learner", problems)


def _check_built(name: str, module_id: Any, spaces: Collection[str]) -> None:
    if module_id not in spaces:
        raise RequestError(
            f"{name} names module {module_id!r}, which is not built.",
            f"there are: {', '.join(spaces)}",
        )


_OF_RUNS = {
    "on_divergence": "look at the weights",
    "trace_hooks": "measure calls of learner.update",
}

_EXAMPLES = {
    "modules": '"a": (observation_space, action_space)',
    "module_options": '"a": {"gamma": 0.95}',
}
