"""The two ends of a federation, as Flower finds them. All they do is in ``perfeds2.deployment.flower.apps``."""
