"""What the shell offers after the tab key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlplug.registry import Kind, Registry

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

__all__ = ["names_of"]


def names_of(*kinds: Kind) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Offer the installed plugins of these kinds, with their summaries."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(plugin.name, help=plugin.summary)
            for kind in kinds
            for plugin in Registry.installed().of_kind(kind)
            if plugin.name.startswith(incomplete)
        ]

    return complete
