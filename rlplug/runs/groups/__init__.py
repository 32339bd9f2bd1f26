"""Several runs that belong together: seeds, the trials of a study, the pairs of an ablation."""
