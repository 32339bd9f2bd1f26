"""The peers: which script measures whom, and the environment that it runs in."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PEERS", "PLAIN", "RLPLUG", "Peer"]

ENVIRONMENTS = Path(__file__).parent.parent.parent / ".benchenvs"
NUMPY = "numpy==2.4.6"


@dataclass(frozen=True)
class Peer:
    """Who is measured: a script of `peers/`, and what its environment needs."""

    name: str
    script: str
    needs: tuple[str, ...] = ()
    """Empty: it runs where this script does."""

    @property
    def folder(self) -> Path:
        """Its environment."""
        return ENVIRONMENTS / self.script

    @property
    def python(self) -> Path:
        """The interpreter to run it with."""
        scripts = "Scripts" if os.name == "nt" else "bin"
        return self.folder / scripts / "python" if self.needs else Path(sys.executable)

    @property
    def failure(self) -> Path:
        """Why it could not be installed, if it could not."""
        return self.folder / "failure.txt"

    def why_missing(self) -> str:
        """Why it cannot be measured; empty if it can."""
        if self.failure.exists():
            return f"not installed: {self.failure.read_text(encoding='utf-8')}"
        if not self.python.exists():
            return "not installed: python benchmarks/bandits.py --setup"
        return ""

    def install(self) -> None:
        """Make its environment, or leave there why it could not be made."""
        if not self.needs:
            return
        print(f"{self.name}: {' '.join(self.needs)}", flush=True)
        venv.create(self.folder, with_pip=True)
        command = [str(self.python), "-m", "pip", "install", "--quiet", *self.needs]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        if done.returncode == 0:
            self.failure.unlink(missing_ok=True)
            return
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        self.failure.write_text("\n".join(errors[-2:]) or done.stderr[-400:], encoding="utf-8")
        print(f"  failed: {self.failure.read_text(encoding='utf-8')}")


RLPLUG = Peer("rlplug module", "rlplug_module")
PLAIN = Peer("plain NumPy", "plain_numpy")
PEERS = (
    RLPLUG,
    PLAIN,
    # 0.5.7 has the same LinUCB, but asks for torch 1.12, which no Python above 3.10 has.
    Peer("Open Bandit Pipeline", "open_bandit", ("obp==0.4.1", "torch==2.13.0", NUMPY)),
    Peer("MABWiser", "mab_wiser", ("mabwiser==2.7.4", "pyarrow>=15", NUMPY)),
)
