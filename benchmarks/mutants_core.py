"""Plants small bugs in the core, one at a time, and counts those that the tests notice.

python benchmarks/mutants_core.py --cover                      first: which test runs which line
python benchmarks/mutants_core.py --cover tests/test_cli.py    the same for tests that changed
python benchmarks/mutants_core.py --sample 20                  twenty bugs in each room
python benchmarks/mutants_core.py --room sampling feeds        all bugs of two rooms
python benchmarks/mutants_core.py --files rlplug/trainer.py    all bugs of one file

A room is a folder or file directly below rlplug/. Rules: `operators` are swapped and conditions
negated, `constants` changed, `statements` dropped, `arguments` swapped, `copies` forgotten. Each
bug is planted in a copy of the tree, and the tests that run its line are run, those of its room
first. Survivors are listed as diffs. Those that cannot change anything belong into
benchmarks/mutants_core.toml, with the file, the rule, the line before and after, and the reason.
`--cover` needs coverage, from the extra `bench`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from mutants_core_cover import COVER, Covered, cover
from mutants_core_rules import RULES, Bug, bugs_in
from mutants_core_trials import ROOT, Outcome, Trial, copy_of_tree, import_heavy

ACCEPTED = Path(__file__).with_suffix(".toml")


def main() -> None:
    """Record what tests cover, or plant bugs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--cover", nargs="*", help="run all tests, or these files, and record their lines"
    )
    parser.add_argument("--room", nargs="+", default=[], help="rooms; without it, all")
    parser.add_argument("--files", nargs="+", default=[], help="files instead of rooms")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--sample", type=int, default=0, help="bugs of each room; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="bugs that are tried at the same time")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for each bug at most")
    said = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if said.cover is not None:
        cover(said.cover)
        return
    if not COVER.exists():
        parser.error(f"there is no {COVER.relative_to(ROOT)} yet: run it with --cover first")
    covered = Covered.read()
    accepted = Accepted.read()
    bugs = list(chosen(said))
    if not bugs:
        parser.error("there is no bug to plant: no such room or file below rlplug/")
    outcomes = []
    # Ctrl-C ends it early: what was found until then is counted.
    with contextlib.suppress(KeyboardInterrupt):
        for outcome in tried(bugs, covered, accepted, said):
            outcomes.append(outcome)
            if outcome.result == "survived":
                print(f"{outcome.bug.diff()}\n  {outcome.why}", flush=True)
    table(outcomes)
    for line in accepted.outdated():
        print(line)


def tried(
    bugs: Sequence[Bug], covered: Covered, accepted: Accepted, said: argparse.Namespace
) -> Iterator[Outcome]:
    """Plant one bug after the other in `--jobs` copies of the tree."""
    import_heavy()
    with tempfile.TemporaryDirectory() as folder:
        free = [copy_of_tree(Path(folder) / str(job)) for job in range(said.jobs)]
        covered = covered.still_there(free[0], said.seconds)
        running: list[Trial] = []
        waiting = list(reversed(bugs))
        try:
            while waiting or running:
                while waiting and free:
                    bug = waiting.pop()
                    reason = accepted.reason(bug)
                    tests, seconds, known = covered.tests_of(bug, said.seconds)
                    if reason:
                        yield Outcome(bug, "accepted", reason)
                    elif not tests:
                        yield Outcome(bug, "survived", "no test runs this line")
                    else:
                        running.append(Trial(bug, free.pop(), tests, seconds, known))
                time.sleep(0.02)
                for trial in [one for one in running if one.over()]:
                    running.remove(trial)
                    free.append(trial.tree)
                    yield trial.outcome()
        finally:
            for trial in running:
                trial.stop()


def chosen(said: argparse.Namespace) -> Iterator[Bug]:
    """The bugs that were asked for, a sample of each room."""
    rooms: dict[str, list[Bug]] = {}
    for path in sorted((ROOT / "rlplug").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for bug in bugs_in(name, path.read_bytes()):
            wanted = name in said.files if said.files else not said.room or bug.room in said.room
            if wanted and bug.rule in said.rules:
                rooms.setdefault(bug.room, []).append(bug)
    for room, bugs in rooms.items():
        drawn = random.Random(f"{said.seed} {room}")
        yield from drawn.sample(bugs, min(said.sample or len(bugs), len(bugs)))


@attrs.frozen
class Accepted:
    """Bugs that change nothing, with the reason."""

    listed: list[dict[str, str]]

    @classmethod
    def read(cls) -> Accepted:
        """Read the list beside this file."""
        return cls(tomllib.loads(ACCEPTED.read_text())["accepted"])

    def reason(self, bug: Bug) -> str:
        """Why it changes nothing; empty if it is not listed."""
        wanted = (bug.file, bug.rule, bug.text, bug.planted_text)
        for one in self.listed:
            if (one["file"], one["rule"], one["line"], one["becomes"]) == wanted:
                return one["reason"]
        return ""

    def outdated(self) -> Iterator[str]:
        """Entries whose line is not there any more."""
        for one in self.listed:
            path = ROOT / one["file"]
            lines = path.read_text().splitlines() if path.exists() else []
            if one["line"] not in map(str.strip, lines):
                yield f"{ACCEPTED.name}: {one['file']} has no line {one['line']!r} any more"


def table(outcomes: Sequence[Outcome]) -> None:
    """How many were noticed, by room and in all."""
    rooms = sorted({outcome.bug.room for outcome in outcomes})
    names = f"{'':>7}{'by its own':>12}{'by time':>9}{'accepted':>10}"
    print(f"\n{'room':<16}{'planted':>9}{'noticed':>9}{names}")
    for room in [*rooms, "all"] if len(rooms) > 1 else rooms:
        of_room = [one for one in outcomes if room in ("all", one.bug.room)]
        tried_ones = [one for one in of_room if one.result != "accepted"]
        noticed = [one for one in tried_ones if one.result == "noticed"]
        share = len(noticed) / max(len(tried_ones), 1)
        own = sum(one.by_own for one in noticed)
        slow = sum(one.too_slow for one in noticed)
        print(
            f"{room:<16}{len(tried_ones):>9}{len(noticed):>9}{share:>7.0%}{own:>12}{slow:>9}"
            f"{len(of_room) - len(tried_ones):>10}"
        )


if __name__ == "__main__":
    main()
