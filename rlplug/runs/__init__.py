"""One run: prepared from what was asked for, carried out, and its result."""
