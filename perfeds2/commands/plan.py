"""perfeds2 plan: which A and S?"""

from typing import Any

import typer

from perfeds2.commands.common import flag, new_folder, prepare_to_train, read_spec, watching
from perfeds2.console import guarded
from perfeds2.errors import InputError

PANEL = {"rich_help_panel": "Plan"}
LEAVES_OUT = (
    *("algorithms", "seeds", "horizon_s", "rounds", "eval_every_s", "stop_when_diverged"),
    *("schedule", "bandwidth", "resume", "yes"),
)


def plan(
    target_loss: float | None = flag("--target-loss", "The personalised training loss to reach. (default: the loss at which a pilot meets --target-accuracy)", "LOSS", **PANEL),
    epsilon: float | None = flag("--epsilon", "The mean of ‖∇F‖² that the bounds are asked for. (default: the pilot's on its way to the loss)", "EPS", **PANEL),
    quorums: str | None = flag("--quorums", "The A to look at, such as 1,2,5. (default: about eight from 1 to n)", "A,A", **PANEL),
    stalenesses: str | None = flag("--stalenesses", "The S to look at, such as 5,10,unbounded. (default: S, 2S and n)", "S,S", **PANEL),
    pilot_rounds: int = flag("--pilot-rounds", "The first pilot gives up after so many rounds.", "K", 1000, **PANEL),
    check: bool = flag("--check", "Train at a few A with other noise: predicted against measured.", default=False, **PANEL),
    as_json: bool = flag("--json", "Print the plan as JSON instead of tables.", default=False, **PANEL),
    **given: Any,
) -> None:  # fmt: skip
    """Find the A and S that reach the target soonest, in seconds, for PerFedS2 on a cell.

    Seconds a round come from the simulated clock, rounds from the bounds and from short pilot trainings; the answer says
    which is which. The output folder gets plan.json and the curve over A as plan.png and plan.pdf.
    """
    quiet, out = given.pop("quiet"), given.pop("out")
    with guarded("plan", []):
        asked: dict[str, Any] = {
            "target_loss": target_loss,
            "epsilon": epsilon,
            "quorums": _whole_numbers("--quorums", quorums),
            "stalenesses": _whole_numbers("--stalenesses", stalenesses, or_unbounded=True),
            "pilot_rounds": pilot_rounds,
            "check": check,
        }
        spec = read_spec(given, {"algorithms": ["PerFedS2"], "seeds": [0]})
        from perfeds2.planning.plan import plan as make_plan
        from perfeds2.report.plan import print_plan, write_plan

        prepare_to_train()
        path = new_folder(out, f"plan-{spec.task.name.label}")
        with watching(quiet or as_json, "plan") as watch:
            made = make_plan(spec, out=path, watch=watch, write=write_plan, **asked)
        if as_json:
            typer.echo(made.to_json())
        elif not quiet:
            print_plan(made)
            typer.echo(f"Plan: {path / 'plan.json'}    Curve: {path / 'plan.png'}")


def _whole_numbers(flag: str, text: str | None, *, or_unbounded: bool = False) -> list[int | None] | None:
    """``1,2,5`` as numbers; ``unbounded`` is none, where that may be."""
    if text is None:
        return None
    numbers: list[int | None] = []
    for part in (part.strip() for part in text.split(",")):
        if part == "unbounded" and or_unbounded:
            numbers.append(None)
        elif part.isdecimal():
            numbers.append(int(part))
        else:
            more = " (or 'unbounded')" if or_unbounded else ""
            raise InputError(f"{flag} takes whole numbers{more} between commas, such as 1,2,5; got {text!r}.")
    return numbers
