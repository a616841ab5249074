"""Bound what the released models reveal about a UE, from the timeline alone."""

DELTA = 1e-5  # δ, unless given
