"""Names of options: which section has one, and what is meant by an unknown one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import attrs

from rlplug.config.sections import CORE_SECTIONS
from rlplug.errors import did_you_mean

Owners = Callable[[str], list[str]]
"""Takes the name of an option; returns who else has one of this name, for messages."""

_OTHERS = {
    "batch_size": "minibatch_size",
    "buffer_size": "memory_size replay_size",
    "clip_range": "clip clip_coef clip_eps clip_param eps_clip",
    "device": "cuda gpu",
    "ent_coef": "entropy_coef entropy_coeff",
    "exploration_fraction": "eps_decay epsilon_decay",
    "gae_lambda": "gae_lam",
    "gae_lambda l2_lambda": "lam lambda",
    "gamma": "discount discount_factor",
    "l2_lambda": "ridge",
    "learning_rate": "lr",
    "max_grad_norm": "grad_clip",
    "n_epochs": "epochs num_epochs update_epochs",
    "n_steps": "horizon num_steps rollout_length",
    "net_arch": "hidden hidden_sizes layers",
    "num_envs": "n_envs",
    "num_threads": "threads",
    "steps": "timesteps total_timesteps",
    "target_update_interval": "target_update",
    "tau": "polyak",
    "vf_coef": "value_coef",
}
"""Names of options here, and what other libraries call the same ones."""

_MEANT = {other: name for name, others in _OTHERS.items() for other in others.split()}


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
