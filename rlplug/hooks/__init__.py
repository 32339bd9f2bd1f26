"""The hook contract between the core and plugins, and the only code that calls plugins."""

import pluggy

__all__ = ["PROJECT", "hookimpl", "hookspec"]

PROJECT = "rlplug"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
