"""One plugin in a process of its own: its checks until one fails, or its fingerprints."""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from rlplug.testing import Subject, checks_for
from rlplug.testing.checks.effects import fingerprint
from rlplug.testing.comparison import digest

LATE = ("importing_is_quiet", "another_process_gives_the_same_numbers")


def main() -> None:
    """Print the result as JSON in the last line."""
    what, plugin, *how = sys.argv[1:]
    try:
        subject = Subject.of(plugin)
        answer = checked(subject, how[0]) if what == "check" else fingerprints(subject)
    except Exception as error:
        text = "".join(traceback.format_exception(error))[-800:]
        answer = {"result": "found", "check": "load", "quick": True, "text": text}
    print(json.dumps(answer))


def checked(subject: Subject, how: str) -> dict[str, Any]:
    """The first check that fails, quick ones first."""
    checks = list(checks_for(subject.found.kind, slow=how == "slow"))
    # Other processes take seconds to start; trainings come last as they do in the kit.
    checks.sort(key=lambda one: (not one.quick, one.name in LATE))
    for check in checks:
        outcome = check.outcome(subject)
        if outcome.status == "failed":
            return {
                "result": "found",
                "check": check.name,
                "quick": check.quick,
                "text": outcome.text,
            }
    return {"result": "survived", "check": "", "quick": False, "text": ""}


def fingerprints(subject: Subject) -> dict[str, Any]:
    """A digest of updates, feeds and actions in all settings and environments."""
    found = {}
    for index, setting in enumerate((*subject.settings, *subject.enabled)):
        for case in subject.cases:
            if index == 0 or "image" not in case.name:
                found[f"{index} {case.name}"] = fingerprint(subject, setting, case)
    return {"digest": digest(found)}


if __name__ == "__main__":
    main()
