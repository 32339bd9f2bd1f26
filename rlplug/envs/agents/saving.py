"""Save games in the middle of their episodes, where they can be pickled."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.utils import EzPickle

from rlplug.envs.agents.games import Game
from rlplug.envs.saving import unreadable_environments
from rlplug.errors import RequestError

__all__ = ["restore_games", "restored_game", "save_games"]

_LONGEST = 160
_DRAWING = "pygame"
"""The package whose objects only draw, and are those of the environments that go on."""
_START_ANEW: Any = EzPickle.__getstate__


def save_games(games: Sequence[Game], beside: Any) -> tuple[bytes, str]:
    """The games and what belongs to their step, or why they cannot be saved."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump(([vars(game) for game in games], beside))
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return b"", lines[0][:_LONGEST]
    return file.getvalue(), ""


def restore_games(games: Sequence[Game], pickled: bytes) -> Any:
    """Continue the saved episodes; returns what was saved beside them.

    Unpickling runs code: only for runs of one's own store.
    """
    drawing = _Pickler(io.BytesIO())
    try:
        drawing.dump([vars(game) for game in games])
        saved, beside = _Unpickler(io.BytesIO(pickled), drawing.drawing).load()
    except Exception as error:
        raise unreadable_environments(error) from error
    if len(saved) != len(games):
        raise RequestError(
            "the saved environments are not those of this run.",
            "try: the sampling.num_envs of the run that saved them",
        )
    for game, state in zip(games, saved, strict=True):
        vars(game).update(state)
    return beside


def restored_game(kind: type[Game], file: io.BytesIO) -> tuple[Game, Any]:
    """A new game that continues the saved one, without what draws, and what was beside it."""
    (state,), beside = _Unpickler(file, ()).load()
    game = kind.__new__(kind)
    vars(game).update(state)
    return game, beside


class _Pickler(pickle.Pickler):
    """Pickles all attributes of environments, also of those that would begin anew (EzPickle)."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.drawing: list[Any] = []
        """Objects that draw, in the order in which they were met."""

    def persistent_id(self, value: Any) -> int | None:
        if type(value).__module__.partition(".")[0] != _DRAWING:
            return None
        self.drawing.append(value)
        return len(self.drawing) - 1

    def reducer_override(self, value: Any) -> Any:
        kind: Any = type(value)
        if isinstance(value, EzPickle) and kind.__getstate__ is _START_ANEW:
            new: Any = copyreg.__dict__["__newobj__"]
            return new, (kind,), vars(value), None, None, _set_attributes
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, drawing: Sequence[Any]) -> None:
        super().__init__(file)
        self._drawing = drawing

    def persistent_load(self, number: Any) -> Any:
        return self._drawing[number] if number < len(self._drawing) else None


def _set_attributes(value: Any, attributes: Mapping[str, Any]) -> None:
    vars(value).update(attributes)
