"""README says what is so: its example runs as written."""

from __future__ import annotations


def test_the_example_prints_what_it_says(example: tuple[str, str], home: object) -> None:
    printed, promised = example
    assert printed == promised
