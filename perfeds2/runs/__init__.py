"""Doing what a spec says: trainings, checkpoints, folders, summaries, sweeps."""
