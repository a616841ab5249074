"""Studies: which trainings to run, and which table to make of them."""
