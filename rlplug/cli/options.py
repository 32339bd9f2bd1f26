"""`rlplug options`: the core's options, common to all algorithms."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option
from rlplug.cli.terminal import console, print_options
from rlplug.errors import RequestError, did_you_mean

__all__ = ["options"]


def _complete_sections(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from rlplug.config.options_table import sections

    return [CompletionItem(name) for name in sections() if name.startswith(incomplete)]


@click.command(cls=Command)
@click.argument("section", required=False, default="", shell_complete=_complete_sections)
@debug_option
def options(section: str) -> None:
    """Show the options of every run, common to all algorithms.

    \b
    rlplug options
    rlplug options evaluation
    """
    from rlplug.config.options_table import rows, sections

    known = sections()
    if section and section not in known:
        raise RequestError(
            f"there is no section {section!r}. "
            f"{did_you_mean(section, known, sentence=True)}".rstrip(),
            f"sections: {', '.join(known)}",
        )
    shown = console()
    for name in [section] if section else known:
        kind = known[name]
        about = (kind.__doc__ or "").strip().partition("\n")[0]
        shown.print(f"[bold]\\[{name}][/bold]  {about}")
        print_options(shown, rows(kind))
        shown.print()
    shown.print(
        "set one: --set evaluation.every=1000, or every = 1000 in [evaluation] of a TOML file",
        markup=False,
    )
    shown.print("options of an algorithm: rlplug plugins show NAME", markup=False)
