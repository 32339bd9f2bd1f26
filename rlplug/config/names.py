"""Names of options: which section has one, and what is meant by an unknown one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import attrs

from rlplug.config.sections import CORE_SECTIONS
from rlplug.errors import did_you_mean

__all__ = ["Owners", "core_owners", "meant_by", "names", "sections_with", "unknown_option"]

Owners = Callable[[str], list[str]]
"""Takes the name of an option; returns who else has one of this name, for messages."""

_MEANT = {
    "clip": "clip_range",
    "clip_coef": "clip_range",
    "clip_eps": "clip_range",
    "clip_param": "clip_range",
    "cuda": "device",
    "discount": "gamma",
    "discount_factor": "gamma",
    "entropy_coef": "ent_coef",
    "entropy_coeff": "ent_coef",
    "epochs": "n_epochs",
    "eps_clip": "clip_range",
    "eps_decay": "exploration_fraction",
    "epsilon_decay": "exploration_fraction",
    "gae_lam": "gae_lambda",
    "gpu": "device",
    "grad_clip": "max_grad_norm",
    "hidden": "net_arch",
    "hidden_sizes": "net_arch",
    "horizon": "n_steps",
    "lam": "gae_lambda l2_lambda",
    "lambda": "gae_lambda l2_lambda",
    "layers": "net_arch",
    "lr": "learning_rate",
    "memory_size": "buffer_size",
    "minibatch_size": "batch_size",
    "n_envs": "num_envs",
    "num_epochs": "n_epochs",
    "num_steps": "n_steps",
    "polyak": "tau",
    "replay_size": "buffer_size",
    "ridge": "l2_lambda",
    "rollout_length": "n_steps",
    "target_update": "target_update_interval",
    "threads": "num_threads",
    "timesteps": "steps",
    "total_timesteps": "steps",
    "update_epochs": "n_epochs",
    "value_coef": "vf_coef",
}
"""Names of options in other libraries, and those of the same options here, between spaces."""


def meant_by(name: str, known: Collection[str] = ()) -> str:
    """The name here of an option that other libraries call `name`; the name itself if none.

    Of several the first that is known, or else the first.
    """
    meant = _MEANT.get(name, name).split(" ")
    return next((one for one in meant if one in known), meant[0])


def names(kind: type[Any]) -> list[str]:
    """The names of the options of a config class."""
    return [field.name for field in attrs.fields(kind) if not field.metadata.get("rest")]


def sections_with(name: str) -> list[str]:
    """The core sections with an option of this name."""
    return [section for section, kind in CORE_SECTIONS.items() if name in names(kind)]


def core_owners(name: str) -> list[str]:
    """The same as they are written in TOML: `[compute]`."""
    return [f"[{section}]" for section in sections_with(name)]


def unknown_option(name: str, known: Iterable[str], owners: Owners = core_owners) -> str:
    """What to say about an unknown option: the name meant, who has it, or a similar one."""
    known = list(known)
    meant = meant_by(name, known)
    if meant in known:
        return f"unknown option, did you mean {meant!r}?"
    for one in (name, meant):
        found = owners(one)
        if found:
            return f"unknown option: {one!r} is an option of {', '.join(found)}"
    guess = did_you_mean(name, known)
    return f"unknown option, {guess}" if guess else "unknown option"
