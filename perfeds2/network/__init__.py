"""Model a cell of unequal devices: their positions, channels, processors and links."""
