"""Find, download and read files of samples: the real data sets and the user's own."""
