"""perfeds2 replay: does a federation's timeline lead to the same weights in the simulator?"""

from pathlib import Path

import typer

from perfeds2.commands.common import QUIET, flag
from perfeds2.console import give_up, guarded, say


def replay(
    folder: Path = typer.Argument(help="The folder of a federation that came to its end.", metavar="DIR"),
    device_data: str | None = flag(
        "--device-data", "Where copies of the devices' data are; {} is the number.", "PATTERN"
    ),
    quiet: bool = QUIET,
) -> None:
    """Train again in the simulator along a federation's recorded timeline, and say how far the weights are apart."""
    with guarded("replay", []):
        from perfeds2.deployment.replay_run import TARGET, replay_run

        agreement = replay_run(folder, device_data)
        say(
            quiet,
            f"{agreement.rounds} rounds, {agreement.merges} merges replayed: largest weight difference {agreement.largest:.3g}, "
            f"relative {agreement.relative:.3g} (in {agreement.where}; target {TARGET:g})",
        )
        if not agreement.holds:
            give_up(1, f"perfeds2 replay: the weights differ by more than {TARGET:g}.")
