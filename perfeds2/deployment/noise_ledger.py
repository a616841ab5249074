"""The secret seeds of a run's noise, and how far the run has come, in a file beside its folder.

Folders of runs are shared and restored from backups. Noise that is drawn twice from one seed would reveal updates, and
merges that are forgotten would make ε too small. So the seeds are outside the folder, every start of the server draws
a new seed of 128 bits, and a folder that is older than the ledger is refused.
"""

import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from perfeds2.errors import InputError
from perfeds2.files import write_atomically, write_text
from perfeds2.learning.learner import Learner

NAME = "noise-ledger"  # file in a run's folder: the name of its ledger, which is no secret


class NoiseLedger(NamedTuple):
    """What the file holds."""

    round: int  # the open one
    seeds: tuple[tuple[int, int], ...]  # (first round, seed)


def file_of(run: Path) -> Path:
    """Return the path of a run's ledger.

    Raises:
        InputError: The run's folder does not name it.
    """
    named = run / NAME
    text = named.read_text(encoding="utf-8", errors="replace") if named.exists() else ""
    if not (len(text) == 32 and text.isalnum()):
        raise InputError(f"{named} is missing or damaged; restore it from a backup, or start a new run.")
    return run.resolve().parent / f".noise-{text}"


def read(run: Path) -> NoiseLedger:
    file = file_of(run)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return NoiseLedger(int(found["round"]), tuple((int(first), int(seed, 16)) for first, seed in found["seeds"]))
    except (OSError, ValueError, LookupError, TypeError):
        raise InputError(
            f"{file}, which has the secret seeds of the noise, is missing or damaged; restore it, or start a new run."
        ) from None


def _write(run: Path, ledger: NoiseLedger) -> None:
    seeds = [(first, f"{seed:032x}") for first, seed in ledger.seeds]
    with write_atomically(file_of(run), 0o600) as out:
        out.write(json.dumps({"round": ledger.round, "seeds": seeds}).encode())


def secret_learner(learner: Learner, run: Path) -> Learner:
    """Return a learner with the seeds of its noise, for a replay."""
    return learner if learner.noise is None else replace(learner, noise_seed=read(run).seeds)


def start(learner: Learner, run: Path, round_: int, *, new: bool) -> Learner:
    """Return a server's learner, with another seed for the rounds from the open one on.

    Raises:
        InputError: The folder is older than the ledger, or the ledger is missing.
    """
    if learner.noise is None:
        return learner
    if new and not (run / NAME).exists():
        write_text(run / NAME, secrets.token_hex(16))
    known = NoiseLedger(0, ()) if new and not file_of(run).exists() else read(run)
    if round_ < known.round:
        raise InputError(
            f"{run} is open in round {round_}, but round {known.round - 1} was closed before; it was restored from an "
            "older copy. Its privacy loss would be counted too low: restore the newest copy, or start a new run."
        )
    earlier = [each for each in known.seeds if each[0] < round_]
    _write(run, NoiseLedger(round_, (*earlier, (round_, secrets.randbits(128)))))
    return secret_learner(learner, run)


def reach(learner: Learner, run: Path, round_: int) -> None:
    """Note the open round, before its model is sent."""
    if learner.noise is not None:
        _write(run, read(run)._replace(round=round_))
