"""Several commands of Flower's command line in one process: ``python -m perfeds2.deployment.flower.many '[["ls"], …]'``."""

import json
import sys

from flwr.cli.app import app


def main() -> int:
    for command in json.loads(sys.argv[1]):
        try:
            app(args=command)
        except SystemExit as end:
            if end.code not in (0, None):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
