"""A search for the options of a run: trials that Optuna proposes and prunes."""
