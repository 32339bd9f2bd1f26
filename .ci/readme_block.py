"""Print the first `sh` block under a heading of README.md: `python .ci/readme_block.py Tests`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
section = readme.partition(f"\n## {sys.argv[1]}\n")[2]
block = re.search(r"```sh\n(.*?)\n```", section, re.DOTALL)
if block is None:
    sys.exit(f"README.md has no sh block under '## {sys.argv[1]}'")
print(block[1])
