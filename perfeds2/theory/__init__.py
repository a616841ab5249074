"""Measure the paper's constants and evaluate its convergence bounds."""
