"""What can a federation be told? The settings of the simulator's spec that it can follow, and those only a deployment has."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from perfeds2.spec.fields import SECTIONS, Section, sections_of, setting, settings_of
from perfeds2.spec.values import Count, NotNegative, Positive, Seconds, within


def _read_slow(given: Any) -> Any:
    """``5=20,2=3.5``: device 5 sleeps 20 seconds in every job, device 2 sleeps 3.5."""
    if not isinstance(given, str):
        return given
    pairs = [re.fullmatch(r"(\d+)=(\S+)", part.strip()) for part in given.split(",")]
    if not all(pairs):
        raise ValueError("names no device and its seconds; expected DEVICE=SECONDS, such as 5=20")
    return {pair[1]: pair[2] for pair in pairs if pair}


def _write_slow(slow: Mapping[int, float]) -> str:
    return ",".join(f"{device}={seconds}" for device, seconds in slow.items())


def _read_factor(given: Any) -> Any:
    return 0.0 if given == "off" else given


def _check_factor(factor: float) -> float:
    if 0 < factor < 1:
        raise ValueError("would refuse what is usual; expected at least 1, or off")
    return factor


Factor = Annotated[NotNegative, BeforeValidator(_read_factor), AfterValidator(_check_factor)]


def _read_rates(given: Any) -> Any:
    """``5=2e5``: device 5 answers as late as if it had sent at 2e5 bit/s."""
    try:
        return _read_slow(given)
    except ValueError:
        raise ValueError("names no device and its rate; expected DEVICE=BIT/S, such as 5=2e5") from None


Rates = Annotated[
    dict[int, Annotated[Positive, within(1e-9, 1e18)]], BeforeValidator(_read_rates), PlainSerializer(_write_slow)
]
Slow = Annotated[dict[int, Seconds], BeforeValidator(_read_slow), PlainSerializer(_write_slow)]
Port = Annotated[int, Field(ge=0, le=65535)]


class DeploymentSpec(Section, title="Federation"):
    """What only a federation on real machines needs."""

    out: Path | None = setting(None, "DIR", "The run's folder, on the server.")
    app_module: Path | None = setting(None, "FILE", "Your own model and data: a file with model and load_data (docs/deploy.md).")  # fmt: skip
    slow: Slow = setting(dict, "D=S", "Let a device sleep in every job, to see what that does: DEVICE=SECONDS. Repeatable.")  # fmt: skip
    uplink_bps: Rates = setting(dict, "D=BPS", "Let a device answer as late as if it sent at so many bit/s: DEVICE=BIT/S. Repeatable.")  # fmt: skip
    gather_s: Seconds = setting(60.0, "SECONDS", "Wait so long for all devices before the first round; then begin with those that are there.")  # fmt: skip
    evaluate_s: Seconds = setting(120.0, "SECONDS", "Wait so long for the last evaluation.")
    norm_bound: Positive | None = setting(None, "NORM", "Refuse updates whose norm is larger.")
    norm_factor: Factor = setting(10.0, "N", "Refuse updates whose norm is so many times the usual one, the devices' median; off: take any.")  # fmt: skip
    job_s: Seconds = setting(600.0, "SECONDS", "Give up a job that is not answered for so long, as a failure of its device; 0: never.")  # fmt: skip
    set_aside_after: Count = setting(3, "N", "Leave out a device after so many failures in a row.")
    readmit_s: Seconds = setting(
        300.0, "SECONDS", "Give a device that was left out another chance after so long; 0: never."
    )
    wait_s: Seconds = setting(600.0, "SECONDS", "Stop when fewer devices than a round needs can be used for so long; 0: wait for ever.")  # fmt: skip
    metrics_port: Port = setting(0, "PORT", "Answer Prometheus (/metrics) and health checks (/healthz) on this port of loopback; 0: do not.")  # fmt: skip
    log: Literal["text", "json"] = setting("text", "FORM", "json: write every event also to events.jsonl, one object a line.")  # fmt: skip


class OwnSections(Section):
    """What a federation has beside a spec."""

    deployment: DeploymentSpec = Field(default_factory=DeploymentSpec)


DEFAULTS = DeploymentSpec()

RENAMED = {  # what a federation calls by another name than a simulation, or has another default for
    ("cell", "ues"): {"name": "devices", "default": "6", "description": "How many devices there are, n."},
    ("run", "rounds"): {"default": "300", "description": "So many rounds."},
    ("run", "algorithms"): {"name": "algorithm", "default": "PerFedS2", "description": "One of {names}.", "look": "NAME"},
    ("run", "seeds"): {"name": "seed", "default": "0", "description": "Of the first weights, the data's division and the batches.", "look": "SEED"},
}  # fmt: skip
ONE_OF_MANY = ("algorithm", "seed")  # a federation runs one, where a simulation runs several
CANNOT_BE_FOLLOWED = {  # devices send when they can, over whatever network there is; rounds count, not seconds
    *(("protocol", key) for key in ("schedule", "unplanned", "tiers", "shares", "bandwidth")),
    ("radio", "top_k"),  # what was not sent would have to be kept with what a method keeps
    ("energy", "budget"),  # nobody measures a device's joules
    *(("run", key) for key in ("horizon_s", "eval_every_s", "stop_when_diverged")),
    *(("cell", key) for key in ("trace_end", "on_leave")),
    *(("task", key) for key in ("held_out", "target", "ue_column", "loss", "metric")),
}
FOLLOWED = [
    replace(
        each,
        **{"description": each.description.replace(", or your own", "")} | RENAMED.get((each.section, each.key), {}),
    )
    for each in settings_of(SECTIONS | sections_of(OwnSections))
    if (each.section, each.key) not in CANNOT_BE_FOLLOWED
]
SETTINGS = {each.name: each for each in FOLLOWED}
