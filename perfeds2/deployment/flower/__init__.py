"""Flower as the engine of a federation."""
