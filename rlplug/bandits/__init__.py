"""Contextual bandits: environments with one-step episodes, tables, and bandit batches.

Importing it registers `LinearBandit-v0`, `FeatureBandit-v0`, `ClassificationBandit-v0`,
`RingsBandit-v0` and `MultiArmedBandit-v0`, so that
`gymnasium.make("rlplug.bandits:LinearBandit-v0")` finds them.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from rlplug.bandits.batch import BanditBatch
from rlplug.bandits.classification import ClassificationBandit
from rlplug.bandits.environments import BanditEnv, BanditVectorEnv, Problem, Rounds, Source
from rlplug.bandits.synthetic import FeatureBandit, LinearBandit, MultiArmedBandit
from rlplug.bandits.table import Table, load_table

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


def _register(name: str, kind: type[Any], **options: Any) -> None:
    # Reloading the module must not warn that an id is taken.
    if f"{name}-v0" not in gymnasium.registry:
        home = f"{kind.__module__}:{kind.__name__}"
        gymnasium.register(
            f"{name}-v0",
            entry_point=f"{home}Env",
            vector_entry_point=f"{home}VectorEnv",
            kwargs=options,
        )


for _kind in (LinearBandit, FeatureBandit, ClassificationBandit, MultiArmedBandit):
    _register(_kind.__name__, _kind)
_register("RingsBandit", ClassificationBandit, table="rings")
