"""Run the ``perfeds2`` command with ``python -m perfeds2``."""

from perfeds2.cli import main

if __name__ == "__main__":  # worker processes import this module without running it
    main()
