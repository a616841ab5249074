"""The paper's constants and bounds, how to measure the ones and use the others."""
