"""Whose turn it is: which optimizers of a module act on a minibatch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rlplug.errors import PluginError
from rlplug.learner.optimizers import Registered

__all__ = ["Turns", "moved", "note_gradients"]

_IDLE_LIMIT = 1000


class Turns:
    """Optimizers that act always, and rings of those that act one at a time."""

    def __init__(self, optimizers: Sequence[Registered]) -> None:
        self.all = list(optimizers)
        self._rings: dict[str, list[Registered]] = {}
        for one in optimizers:
            if one.burst:
                self._rings.setdefault(one.plugin, []).append(one)
        self.places = dict.fromkeys(self._rings, 0)
        """How far each plugin's ring has turned, in steps."""

    def ready(self) -> list[Registered]:
        """The optimizers that may act on the next minibatch."""
        if not self._rings:
            return self.all
        resting = set()
        for plugin, ring in self._rings.items():
            place = self.places[plugin] % sum(one.burst for one in ring)
            for one in ring:
                if not 0 <= place < one.burst:
                    resting.add(one.name)
                place -= one.burst
        return [one for one in self.all if one.name not in resting]

    def advance(self) -> None:
        """A step was made."""
        for plugin in self.places:
            self.places[plugin] += 1


def moved(ready: Sequence[tuple[str, str]], named: Collection[str], *, common: bool) -> list[str]:
    """The names, of (name, plugin) pairs, that a minibatch's losses move.

    A plugin's optimizers rest where a mapping names some of them and leaves them out.
    """
    choosy = {plugin for name, plugin in ready if name in named}
    return [name for name, plugin in ready if name in named or (common and plugin not in choosy)]


def note_gradients(one: Registered, gradients: Sequence[object]) -> None:
    """Raise once an optimizer has waited too long for its first gradient."""
    if gradients:
        one.unanswered = -1
        return
    one.unanswered += 1
    if one.unanswered >= _IDLE_LIMIT:
        raise PluginError(
            f"optimizer {one.name!r} of plugin {one.plugin!r} for module {one.module_id!r} "
            f"got no loss in {_IDLE_LIMIT} minibatches.",
            "compute a loss from its parameters, or do not make it",
        )
