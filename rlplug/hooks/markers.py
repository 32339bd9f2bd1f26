"""The two decorators of the hook contract."""

import pluggy

__all__ = ["PROJECT", "hookimpl", "hookspec"]

PROJECT = "rlplug"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
