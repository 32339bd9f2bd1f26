"""The tests that take too long for each change; arguments are those of pytest.

    python benchmarks/long_tests.py [tests/test_tune.py]

They are marked `long`, and `.ci/run` leaves them out: run them before a release, and after a change
of what they are about.
"""

from __future__ import annotations

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-m", "long", "--durations=10", *sys.argv[1:]]))
