"""A cell of unequal devices: where they are, what they hear, how fast they compute and send."""
