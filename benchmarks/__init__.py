"""Measurements of perfeds2. `python -m benchmarks --help` lists them."""
