"""What can a federation be told? The settings of the simulator's spec that it can follow, and those only a deployment has.

Every setting has one name, that of its flag; where it has no flag, what that would be.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from perfeds2.spec.fields import OWN_FLAGS, Count, Positive, Seconds, Section, Spec


def _read_slow(given: Any) -> Any:
    """``5=20,2=3.5``: device 5 sleeps 20 seconds in every job, device 2 sleeps 3.5."""
    if not isinstance(given, str):
        return given
    pairs = [SLOW.fullmatch(part.strip()) for part in given.split(",")]
    if not all(pairs):
        raise ValueError("takes DEVICE=SECONDS, such as 5=20")
    return {pair[1]: pair[2] for pair in pairs if pair}


def _write_slow(slow: Mapping[int, float]) -> str:
    return ",".join(f"{device}={seconds}" for device, seconds in slow.items())


SLOW = re.compile(r"(\d+)=(\S+)")
Slow = Annotated[dict[int, Seconds], BeforeValidator(_read_slow), PlainSerializer(_write_slow)]


def _flag(default: Any, metavar: str, panel: str, text: str, repeatable: bool = False) -> Any:
    about = {"metavar": metavar, "panel": panel, "repeatable": repeatable}
    return Field(default, description=text, json_schema_extra=about)


class DeploymentSpec(Section):
    """What only a federation on real machines needs."""

    # fmt: off
    out: Path | None = Field(default=None, description="The run's folder, on the server.")
    app_module: Path | None = _flag(None, "FILE", "Task", "Your own model and data: a file with model and load_data (docs/deploy.md).")
    slow: Slow = _flag({}, "D=S", "Federation", "Let a device sleep in every job, to see what that does: DEVICE=SECONDS. Repeatable.", repeatable=True)
    gather_s: Seconds = _flag(60.0, "SECONDS", "Federation", "Wait so long for all devices before the first round; then begin with those that are there.")
    evaluate_s: Seconds = _flag(120.0, "SECONDS", "Federation", "Wait so long for the last evaluation.")
    norm_bound: Positive | None = _flag(None, "NORM", "Safety", "Refuse updates whose norm is larger.")
    set_aside_after: Count = _flag(3, "N", "Safety", "Leave out a device after so many failures in a row.")
    # fmt: on


DEFAULTS = DeploymentSpec()

# What a federation calls by another name than a simulation, or has another default for: name, default, help.
RENAMED = {
    ("cell", "ues"): ("devices", "6", "How many devices there are, n."),
    ("run", "rounds"): ("rounds", "10", "So many rounds."),
    ("run", "algorithms"): ("algorithm", "PerFedS2", "Of {FedAvg,FedProx,PerFed}×{-SYN,S2,-ASY}."),
    ("run", "seeds"): ("seed", "0", "Of the first weights, the data's division and the batches."),
}
ONE_OF_MANY = ("algorithm", "seed")  # a federation runs one, where a simulation runs several
CANNOT_BE_FOLLOWED = {  # devices send when they can, over whatever network there is; rounds count, not seconds
    *(("protocol", key) for key in ("schedule", "shares", "bandwidth")),
    *(("run", key) for key in ("horizon_s", "eval_every_s", "stop_when_diverged")),
}


def _settings() -> dict[str, tuple[str, str]]:
    """Where each setting is, by its name."""
    sections: dict[str, Any] = {name: field.annotation for name, field in Spec.model_fields.items()}
    sections["deployment"] = DeploymentSpec
    names = {place: flag.removeprefix("--") for place, flag in OWN_FLAGS.items()}
    names |= {place: name for place, (name, _, _) in RENAMED.items()}
    places = [(section, key) for section, fields in sections.items() for key in fields.model_fields]
    return {names.get(at) or at[1].replace("_", "-"): at for at in places if at not in CANNOT_BE_FOLLOWED}


SETTINGS = _settings()
