"""The command line: parses, prints, and turns errors into exit codes."""

import sys

try:
    from rlplug.cli.main import main
except KeyboardInterrupt:
    # So early that `main` cannot answer it.
    print("rlplug: interrupted", file=sys.stderr)
    sys.exit(130)

__all__ = ["main"]
