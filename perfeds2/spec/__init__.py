"""Settings and names of a run, and the objects that they describe."""
