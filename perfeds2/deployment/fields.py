"""Declare a federation's settings: those of the simulator's spec that apply to it, and its own."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from perfeds2.spec.fields import SECTIONS, Section, sections_of, setting, settings_of
from perfeds2.spec.values import Count, Large, NotNegative, Positive, Seconds


def _read_pairs(given: Any) -> Any:
    """Parse ``5=20,2=3.5`` into a value for device 5 and one for device 2."""
    if not isinstance(given, str):
        return given
    pairs = [part.strip().partition("=") for part in given.split(",")]
    if not all(device.isdecimal() and value for device, _, value in pairs):
        raise ValueError("is not a value for each device; expected DEVICE=VALUE, such as 5=20")
    devices = [int(device) for device, _, _ in pairs]
    if twice := [device for device in set(devices) if devices.count(device) > 1]:
        raise ValueError(f"names device {min(twice)} twice; give each device one value")
    return {device: value for device, _, value in pairs}


def _write_pairs(values: Mapping[int, float]) -> str:
    return ",".join(f"{device}={value}" for device, value in values.items())


def _check_factor(factor: float) -> float:
    if 0 < factor < 1:
        raise ValueError("would shorten ordinary updates; expected at least 1, or off")
    return factor


PAIRS = BeforeValidator(_read_pairs), PlainSerializer(_write_pairs)
Slow = Annotated[dict[int, Seconds], *PAIRS]
Rates = Annotated[dict[int, Large], *PAIRS]
Factor = Annotated[
    NotNegative, BeforeValidator(lambda given: 0.0 if given == "off" else given), AfterValidator(_check_factor)
]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Index = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


class DeploymentSpec(Section, title="Federation"):
    """Settings that only a federation on real machines has."""

    app_module: Path | None = setting("FILE", "File with your model and load_data (docs/how-to/deploy.md).")
    slow: Slow = setting("D=S", "Seconds that devices sleep in every job, such as 5=20,2=3.5.", dict)
    uplink_bps: Rates = setting("D=BPS", "Uplink rates to imitate, in bit/s, such as 5=2e4.", dict)
    gather_s: Seconds = setting("SECONDS", "Time for all devices to arrive before round 0.", 60.0)
    evaluate_s: Seconds = setting("SECONDS", "Time for the last evaluation.", 120.0)
    norm_bound: Positive | None = setting("NORM", "Norm that longer updates are clipped to.")
    norm_factor: Factor = setting("N", "The same, as a multiple of the median norm; or off.", 10.0)
    epsilon_budget: Positive | None = setting("EPSILON", "Largest privacy loss of a device, which then stops.")
    max_share: PositiveShare = setting("SHARE", "Largest share of merges of one device.", 1.0)
    alarm_fall: PositiveShare = setting("SHARE", "Fall of personal accuracy that raises an alarm; 1 is off.", 0.2)
    job_s: Seconds = setting("SECONDS", "Time to answer a job; 0 is no limit.", 600.0)
    set_aside_after: Count = setting("N", "Failures in a row before a device is set aside.", 3)
    readmit_s: Seconds = setting("SECONDS", "Time until a device set aside is readmitted; 0 is never.", 300.0)
    wait_s: Seconds = setting("SECONDS", "Time to wait for a quorum of devices; 0 is no limit.", 600.0)
    metrics_port: Port = setting("PORT", "Loopback port for /metrics and /healthz; 0 is none.", 0)
    edge: Index | None = setting("N", "Number of this edge server; leave it out for the cloud.")
    cloud: str | None = setting("HOST:PORT", "Address of the cloud's broker, for an edge.")
    cloud_credentials: Path | None = setting("DIR", "Credentials of an edge as a device of the cloud.")
    log: Literal["text", "json"] = setting("FORM", "json: also write events.jsonl, one JSON object per line.", "text")


class OwnSections(Section):
    """The sections that a federation has in addition to the simulator's spec."""

    deployment: DeploymentSpec = Field(default_factory=DeploymentSpec)


DEFAULTS = DeploymentSpec()

RENAMED = {  # settings whose name or default differs from a simulation's
    ("cell", "ues"): {"name": "devices", "default": "6", "description": "Number of devices, n."},
    ("protocol", "schedule"): {"default": "first"},
    ("run", "rounds"): {"default": "300", "description": "Number of rounds."},
    ("run", "algorithms"): {
        "name": "algorithm",
        "default": "PerFedS2",
        "description": "The algorithm.",
        "look": "NAME",
    },
    ("run", "seeds"): {
        "name": "seed",
        "default": "0",
        "description": "Seed of weights, data split and batches.",
        "look": "SEED",
    },
}
SHOWN = {("learning", "merge"): {"default": "the method's own; clipped-mean, not mean, for A of 3 or more"}}
ONE_OF_MANY = ("algorithm", "seed")  # a federation runs one, a simulation several
FOLLOWED_FIELDS = {  # sections not listed apply in full; devices have real radios, processors and batteries
    "task": ("name", "model", "adapter", "init", "labels_per_ue", "split", "data_dir"),
    "cell": ("ues",),
    "cells": ("sites", "edge_rounds", "cloud_quorum", "cloud_staleness"),
    "radio": ("bits", "top_k", "compress"),
    "energy": (),
    "protocol": ("quorum", "max_staleness", "stale", "rest_rounds", "schedule"),
    "run": ("algorithms", "seeds", "rounds", "target_accuracy"),
}
FOLLOWED = [
    replace(
        each,
        **{"description": re.sub(r", or your own|, or FILE.csv of base stations| on a grid", "", each.description)}
        | RENAMED.get((each.section, each.key), {})
        | SHOWN.get((each.section, each.key), {}),
    )
    for each in settings_of(SECTIONS | sections_of(OwnSections))
    if each.key in FOLLOWED_FIELDS.get(each.section, (each.key,))
]
SETTINGS = {each.name: each for each in FOLLOWED}
FILES = ("model", "compress", "init")  # settings by which each machine may name a file of its own
