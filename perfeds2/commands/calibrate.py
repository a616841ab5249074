"""perfeds2 calibrate: a fleet file from a federation's record."""

from pathlib import Path

import typer

from perfeds2.commands.common import QUIET, flag
from perfeds2.console import guarded, say


def calibrate(
    run: Path = typer.Argument(help="The folder of a federation that came to its end.", metavar="RUN"),
    rounds: int | None = flag("--rounds", "Look at the jobs of its first rounds only. (default: all)", "K", min=1),
    out: Path | None = flag("--out", "Where the fleet file goes. (default: RUN/fleet.csv)", "FILE"),
    quiet: bool = QUIET,
) -> None:
    """Fit how fast a federation's devices compute and send, and write it as a fleet file for --cell."""
    with guarded("calibrate", []):
        from perfeds2.deployment.calibrate import calibrate as fit_devices

        path = out or run / "fleet.csv"
        made = fit_devices(run, path, rounds)
        first, last = made.checked
        real_s, predicted_s = made.seconds
        for name, column, spread, scale, unit in (
            ("computing", "compute_s", "compute_spread", 1, "s a job"),
            ("uplink", "rate_bps", "rate_spread", 1e-3, "kbit/s"),
        ):
            low, middle, high = made.devices[column].quantile([0.0, 0.5, 1.0]) * scale
            within = made.devices[spread].median()
            say(
                quiet,
                f"{len(made.devices)} devices, {name}: {low:.3g} to {high:.3g} {unit}, median {middle:.3g}; a job's is within ±{within:.1%} of its device's",
            )
        if made.missing:
            many = ", ".join(map(str, made.missing[:10])) + (", …" if len(made.missing) > 10 else "")
            say(quiet, f"Left out, because they answered no job: device {many}.")
        say(
            quiet,
            f"Rounds {first} to {last - 1} took {real_s:.3g} s; on this fleet the simulator's clock says {predicted_s:.3g} s ({made.gap:+.1%}).",
        )
        say(
            quiet,
            f"Fleet: {path}    Try: perfeds2 simulate --spec {run / 'spec.toml'} --cell {path} --ues {len(made.devices)}",
        )
