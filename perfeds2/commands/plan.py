"""perfeds2 plan: which A, S, band, schedule, local steps and bits?"""

import typer

from perfeds2.commands.common import flag, study
from perfeds2.commands.jax_setup import prepare_to_train
from perfeds2.spec.resolve import resolve

LEAVES_OUT = (
    *("horizon_s", "rounds", "eval_every_s", "stop_when_diverged", "yes"),
    *("workers", "retries"),  # plan trains in this process
)
DEFAULTS = {"algorithms": ["PerFedS2"]}


def plan(
    context: typer.Context,
    check: bool = flag("--check", "Also check the settings given by the flags themselves.", default=False),
    search: list[str] | None = flag(
        "--search", "A setting and the values to search, such as quorum=2,5. Repeatable.", "NAME=VALUES"
    ),
    keep: float = flag("--keep", "Share of later evaluations that must hold the target.", "SHARE", 0.9),
    horizon_s: float | None = flag(
        "--horizon-s", "Simulated seconds per choice. (default: from the first trainings)", "SECONDS"
    ),
    within_s: float | None = flag(
        "--within-s", "Limit: simulated seconds until the target is kept, in every seed.", "SECONDS"
    ),
    joules: float | None = flag("--joules", "Limit: energy of all UEs until the target is kept.", "J"),
    least_share: float | None = flag(
        "--least-share", "Limit: smallest share of merges per UE. (default: above 0)", "SHARE"
    ),
    as_json: bool = flag("--json", "Print the plan as JSON instead of a table.", default=False),
) -> None:
    """Find the protocol settings that reach a target accuracy soonest.

    Searches A, S, bandwidth, schedule, stale rule, local steps and bits. Writes a folder with report.html, plan.json and
    planned.toml, the spec that adopts the choice.
    """
    with study("plan", context) as asked:
        from perfeds2.studies.grid import parse_grid
        from perfeds2.studies.plan import PlanQuestion
        from perfeds2.studies.plan_data import PlanRequest
        from perfeds2.studies.plan_space import make_space

        asked.quiet |= as_json
        question = asked.earlier()
        if question is None:
            values = asked.values(DEFAULTS)
            spec = resolve(values)
            horizon_s = values["run"].get("horizon_s") if horizon_s is None else horizon_s
            request = PlanRequest(keep, horizon_s, check, within_s, joules, least_share)
            question = PlanQuestion(make_space(spec, parse_grid(search or [], "--search")), request)
        prepare_to_train()
        made = asked.do(question, question.spec.task.name.label, [question.spec])
        if as_json:
            typer.echo(made.to_json())
