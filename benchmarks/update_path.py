"""Which files and functions of rlplug and its plugins one update passes through.

python benchmarks/update_path.py                  PPO, as `rlplug run --algo ppo` runs it
python benchmarks/update_path.py --list           with every function, file by file
python benchmarks/update_path.py --algo dqn --update 200 --set learning_starts=100

What else is on the command line is handed to `rlplug run`. A profile hook notes every call of the
run up to the chosen update, the third by default, when caches are filled; lambdas and generators
are functions, too. `rlplug/nn/arrays/` counts as one file and one function.

Judged is the trainer's update: the function that `Trainer.run` calls for a batch, from its start to
its end. `Learner.update` alone is a part of it, and what lies between the ends of two
`Learner.update` has the sampling of a rollout as well.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

TARGETS = {"files": 16, "functions": 75}
LOOP, UPDATE = "Trainer.run", "Learner.update"
ARRAYS = "rlplug.nn.arrays"

Place = tuple[str, str]
"""A module, and the qualified name of a function in it."""


class FinishedError(BaseException):
    """The update that was asked for is over."""


class Recorder:
    """A profile hook that notes calls, and between which of them updates lie."""

    def __init__(self, update: int) -> None:
        self.calls: list[Place] = []
        self.learner: list[tuple[int, int]] = []
        """The first call of each update and the first one after it, of `Learner.update` alone."""
        self.trainer: tuple[int, int] = (0, 0)
        """The same of the chosen update, of what the trainer calls."""
        self._update = update
        self._places: dict[CodeType, Place | None] = {}
        self._stack: list[tuple[str, int]] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call or a return, if it is one of rlplug's."""
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code not in self._places:
            self._places[code] = place_of(frame)
        place = self._places[code]
        if place is None:
            return
        if event == "call":
            self._stack.append((code.co_qualname, len(self.calls)))
            self.calls.append(place)
        elif self._stack:
            self._returned()

    def _returned(self) -> None:
        name, first = self._stack.pop()
        if name == UPDATE:
            self.learner.append((first, len(self.calls)))
        if len(self.learner) == self._update and (not self._stack or self._stack[-1][0] == LOOP):
            self.trainer = (first, len(self.calls))
            sys.setprofile(None)
            raise FinishedError


def place_of(frame: FrameType) -> Place | None:
    """Module and function of a frame; None if it is neither rlplug's nor a plugin's."""
    module = str(frame.f_globals.get("__name__", ""))
    package = module.partition(".")[0]
    if package != "rlplug" and not package.startswith("rlplug_"):
        return None
    if frame.f_code.co_filename.startswith("<"):  # what attrs generates
        return None
    if module == ARRAYS or module.startswith(ARRAYS + "."):
        return ARRAYS, "(one for all)"
    return module, frame.f_code.co_qualname


def record(update: int, arguments: Sequence[str]) -> Recorder:
    """Run until this update is over."""
    from rlplug.cli.main import cli

    recorder = Recorder(update)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        sys.setprofile(recorder)
        try:
            cli.main(["run", "--quiet", *arguments], standalone_mode=False)
        except FinishedError:
            return recorder
        finally:
            sys.setprofile(None)
    raise SystemExit(f"the run had {len(recorder.learner)} updates: give it more --steps")


def report(title: str, calls: Sequence[Place], listing: bool, judged: bool = False) -> None:
    """Print the counts of some calls, and every function if asked to."""
    functions = dict.fromkeys(calls)
    files = dict.fromkeys(module for module, _ in functions)
    print(title)
    for name, count in (("files", len(files)), ("functions", len(functions))):
        met = "yes" if count <= TARGETS[name] else "NO"
        print(f"  {name:<10}{count:>7,}" + f"   at most {TARGETS[name]}: {met}" * judged)
    print(f"  {'calls':<10}{len(calls):>7,}")
    jumps = sum(before[0] != after[0] for before, after in pairwise(calls))
    print(f"  {'jumps':<10}{jumps:>7,}   from a call to one in another file")
    if listing:
        for module in files:
            print(f"    {module}")
            for name in (name for where, name in functions if where == module):
                print(f"        {name}")
    print()


def main() -> None:
    """Record one update, and report what it passed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--update", type=int, default=3, help="which one; needs one before it")
    parser.add_argument("--list", action="store_true", help="print files and functions")
    said, others = parser.parse_known_args()
    recorder = record(said.update, ["--algo", said.algo, *others])
    calls, learner = recorder.calls, recorder.learner
    first, last = recorder.trainer
    report(f"The trainer's update {said.update}", calls[first:last], said.list, judged=True)
    first, last = learner[-1]
    report("Learner.update alone", calls[first:last], listing=False)
    first = learner[-2][1]
    report(
        "From the end of the Learner.update before to the end of this one", calls[first:last], False
    )


if __name__ == "__main__":
    main()
