"""Benchmarks of perfeds2. `python -m benchmarks --help` lists them."""
