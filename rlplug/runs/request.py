"""What a person asked to run, before anything of it has been looked up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.sources import Setting

__all__ = ["Request"]


@attrs.frozen(kw_only=True)
class Request:
    """The parts of a command line, or the arguments of `rlplug.run`."""

    config: Path | None = None
    """A TOML file."""
    flags: Mapping[str, Any] = attrs.field(factory=dict)
    """Nested values that have a flag of their own, such as `{"run": {"seed": 1}}`."""
    settings: tuple[Setting, ...] = ()
    """`--set`, in order: the later wins."""
    flags_origin: str = "command line"
