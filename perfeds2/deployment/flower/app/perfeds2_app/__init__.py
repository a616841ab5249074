"""A name tag. Flower wants every run to carry an app; this one holds no code, because what runs is what is installed."""
