"""PerFedS2's rounds as a Flower app."""
