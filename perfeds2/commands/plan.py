"""perfeds2 plan: which A, S, band, schedule, local steps and bits?"""

from pathlib import Path
from typing import Any

import typer

from perfeds2.commands.common import (
    REUSE,
    TRACK,
    flag,
    followed,
    nested_values,
    new_folder,
    prepare_to_train,
    say_reused,
    take_settings,
    watching,
)
from perfeds2.console import guarded
from perfeds2.errors import InputError
from perfeds2.spec.resolve import resolve

PANEL = {"rich_help_panel": "Plan"}
LEAVES_OUT = ("horizon_s", "rounds", "eval_every_s", "stop_when_diverged", "yes")
DEFAULTS = {"algorithms": ["PerFedS2"], "seeds": [0, 1, 2, 3, 4]}
SHOWN = {"algorithms": ["PerFedS2"]}  # in the help


def plan(
    check: bool = flag(
        "--check",
        "Check what the flags themselves ask for (their A, S and so on): does it hold, and what is better?",
        default=False,
        **PANEL,
    ),
    search: list[str] | None = flag(
        "--search",
        "What to search, bits=32,8 or local-steps=1; of quorum, max-staleness, schedule, bandwidth, stale, local-steps and bits. Repeatable; one value is no search. (default: a few of each, around what the flags say)",
        "NAME=VALUES",
        **PANEL,
    ),
    quorums: str | None = flag(
        "--quorums",
        "The A to look at, such as 1,2,5: --search quorum=1,2,5. (default: about eight from 1 to n)",
        "A,A",
        **PANEL,
    ),
    stalenesses: str | None = flag(
        "--stalenesses", "The S to look at, such as 5,10,unbounded. (default: S, 2S and n)", "S,S", **PANEL
    ),
    keep: float = flag("--keep", "The target must be held in this share of the later looks.", "SHARE", 0.9, **PANEL),
    horizon_s: float | None = flag(
        "--horizon-s",
        "So many simulated seconds every choice is watched. (default: 4.5 times as long as it takes at first)",
        "SECONDS",
        **PANEL,
    ),
    within_s: float | None = flag(
        "--within-s", "A limit: the target is kept from this second on, in every seed.", "SECONDS", **PANEL
    ),
    joules: float | None = flag(
        "--joules", "A limit: all UEs together take no more until the target is kept (see --energy).", "J", **PANEL
    ),
    least_share: float | None = flag(
        "--least-share",
        "A limit: every UE has at least this share of the merges (equal shares are 1/n; 0: some may be left out). (default: nobody is left out altogether)",
        "SHARE",
        **PANEL,
    ),
    theory: bool = flag(
        "--theory",
        "Also what the paper's bounds and its rule for A* say, with measured constants.",
        default=False,
        **PANEL,
    ),
    as_json: bool = flag("--json", "Print the plan as JSON instead of a table.", default=False, **PANEL),
    reuse: list[Path] | None = REUSE,
    track: list[str] | None = TRACK,
    **given: Any,
) -> None:
    """Find the A, S, band, schedule, stale rule, local steps and bits that reach the target soonest and keep it.

    On any cell, radio and task. The clock says what a choice cannot do, short trainings on several seeds what it learns; nothing is
    recommended that loses the target again, or stands beside a choice that does. The output folder gets plan.json, planned.toml (the spec
    that adopts it), report.html and the maps as plan.png and plan.pdf. The same command with --out, or --resume DIR, goes on.
    """
    quiet, out, resume = given.pop("quiet"), given.pop("out"), given.pop("resume")
    place: list[Path] = []
    with guarded("plan", place):
        from perfeds2.studies.grid import parse_grid

        spec_file, assignments, flags = take_settings(given)
        asked: dict[str, Any] = {
            "check": check,
            "keep": keep,
            "horizon_s": horizon_s,
            "within_s": within_s,
            "joules": joules,
            "least_share": least_share,
            "theory": theory,
        }
        axes: dict[str, Any] = {
            name: [None if value == "unbounded" else value for value in values]
            for name, values in parse_grid(search or [], "--search").items()
        }
        axes |= {} if quorums is None else {"quorum": _whole_numbers("--quorums", quorums)}
        axes |= {} if stalenesses is None else {"max_staleness": _whole_numbers("--stalenesses", stalenesses)}
        from perfeds2.report.plan import print_plan, write_plan
        from perfeds2.runs.store import open_others
        from perfeds2.studies.plan import plan as make_plan
        from perfeds2.studies.plan import read_asked

        if resume is not None:
            if any((spec_file, assignments, flags, axes, out)):
                raise InputError("--resume takes everything from the folder; give it without other settings.")
            asked = read_asked(resume)
        else:
            values = nested_values(spec_file, flags, assignments, DEFAULTS)
            said = values.get("run", {}) if isinstance(values.get("run"), dict) else {}
            asked["horizon_s"] = horizon_s if horizon_s is not None else said.get("horizon_s")
            asked |= {"spec": resolve(values), "search": axes}
        prepare_to_train()
        others = open_others(reuse or ())
        path = resume or new_folder(out, f"plan-{asked['spec'].task.name.label}")
        with followed(path, track) as followers, watching(quiet or as_json, "plan") as watch:

            def tell(now: Any) -> None:
                if (path / "spec.toml").exists() and not place:
                    place.append(path)
                watch(now)

            made = make_plan(out=path, watch=tell, write=write_plan, reuse=others, followers=followers, **asked)
        say_reused(quiet or as_json, others)
        if as_json:
            typer.echo(made.to_json())
        elif not quiet:
            print_plan(made)
            typer.echo(f"Results: {path}    Report: {path / 'report.html'}")


def _whole_numbers(flag: str, text: str) -> list[int | None]:
    """``1,2,5`` as numbers; ``unbounded`` is none."""
    numbers: list[int | None] = []
    for part in (part.strip() for part in text.split(",")):
        if part == "unbounded" and flag == "--stalenesses":
            numbers.append(None)
        elif part.isdecimal():
            numbers.append(int(part))
        else:
            more = " (or 'unbounded')" if flag == "--stalenesses" else ""
            raise InputError(f"{flag} takes whole numbers{more} between commas, such as 1,2,5; got {text!r}.")
    return numbers
