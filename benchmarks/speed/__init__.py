"""The groups of `python -m benchmarks`."""
