"""perfeds2 replay: check that the simulator reaches the weights of a federation."""

from pathlib import Path

import typer

from perfeds2.commands.common import QUIET, flag
from perfeds2.console import give_up, say


def replay(
    folder: Path = typer.Argument(help="Folder of a finished federation.", metavar="DIR"),
    device_data: str | None = flag("--device-data", "Copies of the devices' data; {} is the device number.", "PATTERN"),
    quiet: bool = QUIET,
) -> None:
    """Replay a federation's timeline in the simulator and compare the weights."""
    from perfeds2.deployment.replay_run import TARGET, replay_run

    agreement = replay_run(folder, device_data)
    say(
        quiet,
        f"{agreement.rounds} rounds, {agreement.merges} merges replayed: largest weight difference {agreement.largest:.3g}, "
        f"relative {agreement.relative:.3g} (in {agreement.where}; target {TARGET:g})",
    )
    if agreement.job_by_job:
        say(quiet, "Computed job by job, with the devices' own program.")
    if not agreement.holds:
        give_up(1, f"perfeds2 replay: the weights differ by more than {TARGET:g}.")
