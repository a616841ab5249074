"""Render a run's folder as figures and one HTML page. Imports neither JAX nor Flower."""
