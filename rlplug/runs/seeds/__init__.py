"""Several seeds of one run: a process for each, and what they come to together."""
