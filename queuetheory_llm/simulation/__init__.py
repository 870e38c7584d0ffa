"""Runs of one engine: a plain reference runner, and what is said of a run."""
