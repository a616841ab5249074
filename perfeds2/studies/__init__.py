"""Studies: each chooses which trainings to run and makes tables of the results."""
