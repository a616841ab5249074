"""Runs and comparisons: what to do (spec), doing it (run), and what came out (summary)."""
