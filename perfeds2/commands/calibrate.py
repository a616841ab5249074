"""perfeds2 calibrate: fit a fleet file to a federation's devices."""

from pathlib import Path

import typer

from perfeds2.commands.common import QUIET, flag
from perfeds2.console import say


def calibrate(
    run: Path = typer.Argument(help="Folder of a finished federation.", metavar="RUN"),
    rounds: int | None = flag("--rounds", "Number of first rounds to fit. (default: all)", "K", min=1),
    out: Path | None = flag("--out", "Fleet file to write. (default: RUN/fleet.csv)", "FILE"),
    quiet: bool = QUIET,
) -> None:
    """Fit a fleet file to the measured speeds of a federation's devices."""
    from perfeds2.deployment.calibrate import calibrate as fit_devices

    path = out or run / "fleet.csv"
    made = fit_devices(run, path, rounds)
    first, last = made.checked
    real_s, predicted_s = made.seconds
    count, job_s, kbps = len(made.devices), made.devices.compute_s, made.devices.rate_bps / 1000
    lines = [
        f"{count} devices compute {job_s.min():.3g} to {job_s.max():.3g} s per job, median {job_s.median():.3g}; jobs of one device vary by {made.devices.compute_spread.median():.1%}.",
        f"They send {kbps.min():.3g} to {kbps.max():.3g} kbit/s, median {kbps.median():.3g}; jobs of one device vary by {made.devices.rate_spread.median():.1%}.",
        f"Rounds {first} to {last - 1} took {real_s:.3g} s; the simulator predicts {predicted_s:.3g} s for this fleet ({made.gap:+.1%}).",
        f"Fleet: {path}    Try: perfeds2 simulate --spec {run / 'spec.toml'} --cell {path} --ues {count}",
    ]
    if made.missing:
        lines.insert(2, f"Left out, because they answered no job: devices {', '.join(map(str, made.missing))}.")
    say(quiet, "\n".join(lines))
