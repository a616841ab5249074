"""What exactly is to be run: every setting once, every name once, and the objects they stand for."""
