"""A run's folder as figures and one page. Imports neither JAX nor Flower."""
