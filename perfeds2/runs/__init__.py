"""Run the trainings that a spec describes, with checkpoints, run folders and summaries."""
