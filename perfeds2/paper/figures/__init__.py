"""The figures of the paper's Section VI, one file each, named as its LaTeX labels are."""
