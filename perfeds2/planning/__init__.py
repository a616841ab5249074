"""Which A and S reach the target soonest: the clock, the bounds and short pilot trainings."""
