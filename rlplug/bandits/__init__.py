"""Contextual bandits: environments of one-step episodes, tables, and the bandit batch.

Importing it registers `LinearBandit-v0`, `FeatureBandit-v0` and `ClassificationBandit-v0`, so that
`gymnasium.make("rlplug.bandits:LinearBandit-v0")` finds them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from rlplug.bandits.batch import BanditBatch
    from rlplug.bandits.classification import ClassificationBandit
    from rlplug.bandits.environments import BanditEnv, BanditVectorEnv
    from rlplug.bandits.feature import FeatureBandit
    from rlplug.bandits.linear import LinearBandit
    from rlplug.bandits.problem import Problem, Rounds, Source
    from rlplug.bandits.table import Table, load_table

_HOME = {
    "BanditBatch": "rlplug.bandits.batch",
    "BanditEnv": "rlplug.bandits.environments",
    "BanditVectorEnv": "rlplug.bandits.environments",
    "ClassificationBandit": "rlplug.bandits.classification",
    "FeatureBandit": "rlplug.bandits.feature",
    "LinearBandit": "rlplug.bandits.linear",
    "Problem": "rlplug.bandits.problem",
    "Rounds": "rlplug.bandits.problem",
    "Source": "rlplug.bandits.problem",
    "Table": "rlplug.bandits.table",
    "load_table": "rlplug.bandits.table",
}

__all__ = [
    "BanditBatch",
    "BanditEnv",
    "BanditVectorEnv",
    "ClassificationBandit",
    "FeatureBandit",
    "LinearBandit",
    "Problem",
    "Rounds",
    "Source",
    "Table",
    "load_table",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'rlplug.bandits' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _register(name: str) -> None:
    # Reloading the module must not warn that an id is taken.
    if f"{name}-v0" not in gymnasium.registry:
        home = f"rlplug.bandits.{name.removesuffix('Bandit').lower()}"
        gymnasium.register(
            f"{name}-v0",
            entry_point=f"{home}:{name}Env",
            vector_entry_point=f"{home}:{name}VectorEnv",
        )


_register("LinearBandit")
_register("FeatureBandit")
_register("ClassificationBandit")
