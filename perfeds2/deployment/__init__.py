"""The same rounds for real: a PerFedS2 federation over a network, with Flower as its engine."""
