"""What was recorded of runs, read again: one run, its metrics, statistics of several."""
