"""Runs whose environments are stepped by runners on a Ray cluster."""
