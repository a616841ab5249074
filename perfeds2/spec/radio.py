"""What radio, mobility, downlink, energy and budget does a spec stand for?"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from perfeds2.errors import InputError
from perfeds2.network.cell import Cell
from perfeds2.network.energy import ENERGY, EnergyModel
from perfeds2.network.link import Downlink
from perfeds2.network.mobility import MOBILITY, Moves, coherence_seconds
from perfeds2.network.radios import Radio, Where
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Named, call
from perfeds2.timeline.budget import Budget

OF_A_RADIO = ("carrier_hz", "bs_height_m", "ue_height_m", "noise_figure_db", "shadowing_db", "power_control")


def make_energy(spec: Spec) -> EnergyModel:
    """What computing and sending take."""
    energy, kappa = ENERGY[spec.energy.model or "yang"], spec.energy.kappa
    return energy if kappa is None else replace(energy, kappa=kappa)


def make_budget(spec: Spec, cell: Cell, samples: float) -> Budget | None:
    """Return what each UE may spend: its fleet's budget, else the spec's. None where no UE has one."""
    own_j = None if cell.fleet is None else cell.fleet.energy_budget_j
    joules = spec.energy.budget
    if own_j is not None:
        joules = np.where(np.isnan(own_j), np.inf if joules is None else joules, own_j)
    return None if joules is None else Budget.of(joules, make_energy(spec), cell, samples)


def make_radio(spec: Spec, model_bits: Callable[[], float]) -> dict[str, Any]:
    """What a spec says of the radio, as a cell takes it; nothing where it says nothing."""
    settings, named, made = spec.radio, spec.radio.name, dict[str, Any]()
    own = {key: value for key in OF_A_RADIO if (value := dict(settings)[key]) is not None}
    if named is None or named.value is None:
        unused = next((key for key in own if key != "carrier_hz"), None)
        if unused is not None:
            flag = f"--{unused.replace('_', '-')}"
            raise InputError(f"{flag} changes nothing in the paper's radio; choose one that has it, --radio umi.")
    else:
        for key, usual in (("path_loss_exponent", 3.8), ("fading_scale", 40.0)):
            if dict(spec.cell)[key] != usual:
                flag = f"--{key.replace('_', '-')}"
                raise InputError(f"{flag} is of the paper's radio and changes nothing with --radio {named}.")
        radio = named.value
        if not isinstance(radio, Radio):
            radio = Radio(named.label, partial(_own_loss, named))
        made["radio"] = replace(radio, **own)
    if settings.efficiency_cap is not None:
        made["most_bits_per_s_hz"] = settings.efficiency_cap
    if settings.fading is not None:
        how, _, k = settings.fading.partition(":")
        made["rician_k"] = float(k) if how == "rician" else np.inf if how == "none" else 0.0
    if settings.downlink in ("multicast", "unicast"):
        dbm = settings.bs_power_dbm
        dbm = dbm if dbm is not None else made["radio"].bs_power_dbm if "radio" in made else 44.0
        made["downlink"] = Downlink(settings.downlink, 10 ** (dbm / 10) / 1000, model_bits())
    carrier_hz = made["radio"].carrier_hz if "radio" in made else settings.carrier_hz or 3.5e9
    if settings.coherence_s is not None:
        made["coherence_s"] = settings.coherence_s
    elif settings.speed_mps is not None:
        made["coherence_s"] = coherence_seconds(settings.speed_mps, carrier_hz)
    walk = MOBILITY[settings.mobility or "none"]
    if walk is not None:
        if settings.speed_mps is None:
            raise InputError(f"--mobility {settings.mobility} needs a --speed-mps, such as 1.4 for walking.")
        made["moves"] = Moves(walk, settings.speed_mps, spec.cell.radius_m)
    return made


def _own_loss(named: Named, radio: Radio, where: Where) -> Float[np.ndarray, " n"]:
    """Somebody's own radio: a function of any of these that gives the loss of each UE in dB."""
    known = {"distance_m": where.distance_m, "x_m": where.x_m, "y_m": where.y_m, "seed": where.seed}
    known |= {"carrier_hz": radio.carrier_hz, "bs_height_m": radio.bs_height_m, "ue_height_m": radio.ue_height_m}
    loss = np.asarray(call(named.value, f"--radio {named}", known), float)
    if loss.shape != where.x_m.shape or not np.isfinite(loss).all():
        raise InputError(
            f"--radio {named} gave {loss.tolist()!r:.80}; expected a path loss in dB for each of {where.x_m.size} UEs."
        )
    return loss
