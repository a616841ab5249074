"""Bound what the released models reveal about a UE, from the timeline alone."""

DELTA = 1e-5  # δ, unless given
FEWEST_MEMBERS, MOST_MEMBERS = 3, 100  # of secure aggregation; each of two would learn the other's update from the sum
MESSAGES = 2  # that a UE waits for with secure aggregation: the model, and the list of members
