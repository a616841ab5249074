"""perfeds2 fleet: generate a synthetic fleet."""

from pathlib import Path

from perfeds2.commands.common import QUIET, flag
from perfeds2.console import say
from perfeds2.errors import InputError

FILE = "fleet.csv"


def fleet(
    out: Path | None = flag("--out", "Folder for fleet.csv and its traces. Required.", "DIR"),
    devices: int = flag("--devices", "Number of devices.", "N", 50, min=1, max=100_000),
    seed: int = flag("--seed", "Seed of the random draws.", "SEED", 0, min=0),
    samples_per_s: float = flag("--samples-per-s", "Speed of the median processor.", "N", 500.0, min=1e-6),
    trace_s: float = flag("--trace-s", "Length of the traces.", "SECONDS", 600.0, min=2.0),
    traced: float = flag(
        "--traced", "Share of devices with a trace; others have a constant rate.", "SHARE", 1.0, min=0, max=1
    ),
    hours: float = flag(
        "--hours", "Share of devices that come and go; others are always available.", "SHARE", 0.5, min=0, max=1
    ),
    day_s: float = flag("--day-s", "Length of the day after which the hours repeat.", "SECONDS", 86_400.0, min=10.0),
    quiet: bool = QUIET,
) -> None:
    """Generate a synthetic fleet of phones, as files for --cell.

    For tests and examples. docs/how-to/fleets.md describes fleets and their files.
    """
    from perfeds2.network.synthetic_fleet import Made, write_fleet

    if out is None:
        raise InputError("--out is missing; give a folder for the fleet, such as --out phones.")
    _refuse_used(out)
    made = Made(devices, seed, samples_per_s, trace_s=trace_s, traced=traced, hours=hours, day_s=day_s)
    path = write_fleet(out, made)
    say(quiet, f"{devices} devices: {path}    Try: perfeds2 simulate --cell {path}")


def _refuse_used(out: Path) -> None:
    if (out / FILE).exists():
        raise InputError(f"--out {out} already has a {FILE}; choose another folder, or delete it.")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; expected a folder.")
