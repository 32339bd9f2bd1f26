"""The command line: parses, prints, and turns errors into exit codes."""

from rlplug.cli.main import main

__all__ = ["main"]
