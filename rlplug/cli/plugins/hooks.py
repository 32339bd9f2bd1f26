"""`rlplug plugins hooks`: the contract, printed from the specifications themselves."""

from __future__ import annotations

import click

from rlplug.cli.debug import debug_option

__all__ = ["hooks"]


@click.command()
@click.option("--markdown", is_flag=True, help="Print docs/hooks.md: the guide and the reference.")
@debug_option
def hooks(markdown: bool) -> None:
    """Show the hooks that a plugin can implement."""
    from rlplug.hooks import reference

    if markdown:
        click.echo(reference.markdown(), nl=False)
        return
    for entry in reference.entries():
        click.echo(f"{click.style(entry.name, bold=True)}({', '.join(entry.arguments)})")
        click.echo(f"    {entry.summary}")
        click.echo(f"    called: {entry.called}\n")
    click.echo("the whole contract, with examples: rlplug plugins hooks --markdown")
