"""Simulate when things happen: the protocol's rounds, the virtual clock and the resulting timeline."""
