"""Bound what the released models reveal about a UE, from the timeline alone."""
