"""Contextual bandits: environments with one-step episodes, tables, and bandit batches.

Importing it registers `LinearBandit-v0`, `FeatureBandit-v0`, `ClassificationBandit-v0`,
`RingsBandit-v0` and `MultiArmedBandit-v0`, so that
`gymnasium.make("rlplug.bandits:LinearBandit-v0")` finds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from rlplug.lazy import lazy_names

if TYPE_CHECKING:
    from rlplug.bandits.batch import BanditBatch
    from rlplug.bandits.classification import ClassificationBandit
    from rlplug.bandits.environments import BanditEnv, BanditVectorEnv
    from rlplug.bandits.feature import FeatureBandit
    from rlplug.bandits.linear import LinearBandit
    from rlplug.bandits.loading import load_table
    from rlplug.bandits.multiarmed import MultiArmedBandit
    from rlplug.bandits.problem import Problem, Rounds, Source
    from rlplug.bandits.table import Table

_MODULES = {
    "BanditBatch": "rlplug.bandits.batch",
    "BanditEnv": "rlplug.bandits.environments",
    "BanditVectorEnv": "rlplug.bandits.environments",
    "ClassificationBandit": "rlplug.bandits.classification",
    "FeatureBandit": "rlplug.bandits.feature",
    "LinearBandit": "rlplug.bandits.linear",
    "MultiArmedBandit": "rlplug.bandits.multiarmed",
    "Problem": "rlplug.bandits.problem",
    "Rounds": "rlplug.bandits.problem",
    "Source": "rlplug.bandits.problem",
    "Table": "rlplug.bandits.table",
    "load_table": "rlplug.bandits.loading",
}

__all__ = [
    "BanditBatch",
    "BanditEnv",
    "BanditVectorEnv",
    "ClassificationBandit",
    "FeatureBandit",
    "LinearBandit",
    "MultiArmedBandit",
    "Problem",
    "Rounds",
    "Source",
    "Table",
    "load_table",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)


def _register(name: str, kind: str = "", **options: Any) -> None:
    """Register an environment, or one with other options of the class `kind`."""
    # Reloading the module must not warn that an id is taken.
    if f"{name}-v0" not in gymnasium.registry:
        kind = kind or name
        home = f"rlplug.bandits.{kind.removesuffix('Bandit').lower()}"
        gymnasium.register(
            f"{name}-v0",
            entry_point=f"{home}:{kind}Env",
            vector_entry_point=f"{home}:{kind}VectorEnv",
            kwargs=options,
        )


_register("LinearBandit")
_register("FeatureBandit")
_register("ClassificationBandit")
_register("MultiArmedBandit")
_register("RingsBandit", "ClassificationBandit", table="rings")
