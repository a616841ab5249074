"""``python -m perfeds2`` is ``perfeds2``."""

from perfeds2.cli import main

if __name__ == "__main__":  # not where a process that this one started imports it
    main()
