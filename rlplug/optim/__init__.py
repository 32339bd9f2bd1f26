"""Optimizers in the six forms a plugin may give them, schedules, clipping and balance."""
