"""Run the clock in compiled loops: optional, faster and identical bit for bit."""
