"""What all feed descriptions share."""

from __future__ import annotations

import attrs

__all__ = ["Feed"]


@attrs.frozen(kw_only=True)
class Feed:
    """A description of how experience is collected and turned into batches."""
