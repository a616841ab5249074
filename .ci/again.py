"""Run pytest, then the tests that failed once more, alone: ``python .ci/again.py .venv/bin/pytest -n 4``.

A test that passes then is a fault, too, not luck: it is listed, and more than three of them fail the run.
"""

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
MOST = 3
SOME_FAILED = 1  # pytest's exit status when all tests ran


def main(command: list[str]) -> int:
    status = subprocess.run(command, check=False).returncode  # noqa: S603 (our own words)
    if status != SOME_FAILED:
        return status
    first = failed()
    print("Running the failed tests once more, alone.", flush=True)
    alone = [*without_processes(command), "--last-failed", "--last-failed-no-failures", "none"]
    status = subprocess.run(alone, check=False).returncode  # noqa: S603
    passed = sorted(first - failed()) if status in (0, SOME_FAILED) else []
    for name in passed:
        print(f"failed, then passed alone: {name}")
    if len(passed) > MOST:
        print(f"{len(passed)} tests failed and then passed alone; at most {MOST} may.")
        return SOME_FAILED
    return status


def failed() -> set[str]:
    return set(json.loads(FAILED.read_text("utf-8"))) if FAILED.exists() else set()


def without_processes(command: list[str]) -> list[str]:
    """The command without pytest-xdist's flags."""
    kept, words = [], iter(command)
    for word in words:
        if word in ("-n", "--maxprocesses", "--dist"):
            next(words)
        elif word != "--no-loadscope-reorder":
            kept.append(word)
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
