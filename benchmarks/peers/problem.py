"""The problems that every peer is given: grown from a seed with NumPy alone, so equal for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy
from numpy.typing import NDArray

__all__ = ["Floats", "Logged", "Rounds", "featured_rounds", "fixed_rounds", "logged_rows"]

Floats: TypeAlias = NDArray[numpy.float64]

NOISE = 0.1


@dataclass(frozen=True)
class Rounds:
    """What is seen before each decision, and what every arm would pay."""

    seen: Floats
    """Contexts (rounds, features), or features of all arms (rounds, arms, features)."""
    expected: Floats
    """Without noise, (rounds, arms)."""
    rewards: Floats
    """With it."""


@dataclass(frozen=True)
class Logged:
    """Rows of a log whose arms were chosen at random, and rounds to try what was learned on."""

    contexts: Floats
    actions: NDArray[numpy.int64]
    rewards: Floats
    test: Rounds


def fixed_rounds(seed: int, rounds: int, arms: int, features: int) -> Rounds:
    """Contexts of norm 1; every arm has hidden parameters of norm 1."""
    random = numpy.random.default_rng(seed)
    hidden = _unit(random.standard_normal((arms, features)))
    return _rounds(random, _unit(random.standard_normal((rounds, features))), hidden)


def featured_rounds(seed: int, rounds: int, arms: int, features: int) -> Rounds:
    """Every decision is among new arms of norm 1; one hidden parameter vector pays for all."""
    random = numpy.random.default_rng(seed)
    hidden = _unit(random.standard_normal((1, features)))[0]
    return _rounds(random, _unit(random.standard_normal((rounds, arms, features))), hidden)


def logged_rows(seed: int, rows: int, arms: int, features: int) -> Logged:
    """`rows` rows of fixed arms, drawn in place: memory never holds them twice."""
    random = numpy.random.default_rng(seed)
    hidden = _unit(random.standard_normal((arms, features)))
    contexts = numpy.empty((rows, features))
    random.standard_normal(out=contexts)
    contexts /= features**0.5
    actions = random.integers(arms, size=rows)
    rewards = NOISE * random.standard_normal(rows)
    for arm in range(arms):
        for start in range(0, rows, _CHUNK):
            part = slice(start, start + _CHUNK)
            of_arm = numpy.flatnonzero(actions[part] == arm)
            rewards[part][of_arm] += contexts[part][of_arm] @ hidden[arm]
    test = _rounds(random, _unit(random.standard_normal((200, features))), hidden)
    return Logged(contexts, actions, rewards, test)


_CHUNK = 50_000


def _rounds(random: numpy.random.Generator, seen: Floats, hidden: Floats) -> Rounds:
    expected = seen @ hidden.T
    return Rounds(seen, expected, expected + NOISE * random.standard_normal(expected.shape))


def _unit(vectors: Floats) -> Floats:
    scaled: Floats = vectors / numpy.sqrt((vectors**2).sum(-1, keepdims=True))
    return scaled
