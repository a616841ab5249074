"""Build the cell of a spec: UEs, radio, mobility, downlink and energy, drawn at random or from a fleet file."""

import inspect
import math
from dataclasses import replace
from functools import partial

import jax
import numpy as np
from jaxtyping import Float

from perfeds2.errors import InputError, input_errors
from perfeds2.learning.objectives import Objective
from perfeds2.learning.operations import counted_cycles
from perfeds2.learning.task import CYCLES_PER_PARAMETER, cycles_of_parameters, payload_bits, weight_shapes
from perfeds2.learning.transforms import OwnCompression, Transform, compressed
from perfeds2.learning.trees import without
from perfeds2.network.cell import Cell
from perfeds2.network.cells import Cells, make_cells
from perfeds2.network.energy import ENERGY, EnergyModel
from perfeds2.network.errors import Errors, Outage
from perfeds2.network.fleet_file import FleetFile
from perfeds2.network.indoor import indoors, wall_db
from perfeds2.network.link import Downlink, PerUe
from perfeds2.network.mobility import Moves, coherence_seconds
from perfeds2.network.modulation import LINKS, Attenuated, up_to
from perfeds2.network.profile import Profile
from perfeds2.network.radios import Radio, Where
from perfeds2.network.sites import Sites
from perfeds2.network.trajectories import Trajectories
from perfeds2.privacy.sharing import extra_bits
from perfeds2.spec.cell_fields import CellSpec, RadioSpec
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Named, Value, Values, call, expect, user_errors
from perfeds2.spec.ranks import at_rank, ranks_of
from perfeds2.spec.tasks import model_of, sample_of
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.state import Budget

NOTHING_BITS = 1.0  # of an upload without content, since the clock needs some length
NOT_FOR_CELLS = {"kind", "distance_m", "parameters", "payload_bits", "trace_end", "on_leave", "begin_s"}
NOT_FOR_CELLS |= {"cycles", "count_hessian"}
# The paper's radio has only the first.
OF_A_RADIO = ("carrier_hz", "bs_height_m", "ue_height_m", "noise_figure_db", "shadowing_db", "power_control")


def make_cell(spec: Spec, seed: int) -> Cell:
    """Make the cell of a seed, or all cells as one: positions, processor speeds and fading."""
    cells = make_network(spec, seed)
    return _single_cell(spec, seed) if cells is None else cells.whole


def make_network(spec: Spec, seed: int) -> Cells | None:
    """Make the cells of a seed; None if there is only one."""
    settings, sites = spec.cells, spec.cells.sites
    if (sites or 1) == 1:
        given = next((key for key, value in settings if value is not None and key != "sites"), None)
        if given is not None:
            flag = given.replace("_", "-")
            raise InputError(
                f"--{flag} {dict(settings)[given]} has no effect in one cell; add --cells, such as --cells 7."
            )
        return None
    fleet = fleet_of(spec)
    for key in ("kind", "layout", "distance_m"):
        if dict(spec.cell)[key] != CellSpec.model_fields[key].default and (key != "kind" or fleet is None):
            flag = "cell" if key == "kind" else key.replace("_", "-")
            raise InputError(f"--{flag} describes a single cell; leave it out, or leave out --cells {sites}.")
    if isinstance(sites, Named) and settings.sectors is not None:
        raise InputError(f"--sectors {settings.sectors} divides a grid; give {sites} a column azimuth_deg instead.")
    if isinstance(sites, Named) and settings.wrap_around is not None:
        raise InputError(f"--wrap-around repeats a grid, and {sites} is none; leave it out, or give --cells a number.")
    if fleet is not None and not np.isnan(fleet.column("distance_m")).all():
        raise InputError(
            f"--cell {spec.cell.kind} gives distances to one base station; leave out the column distance_m."
        )
    with input_errors(f"--cells {sites}"):
        return make_cells(
            _single_cell(spec, seed),
            sites.value
            if isinstance(sites, Named)
            else Sites.grid(sites or 1, spec.cell.radius_m, settings.sectors or 1, wraps=bool(settings.wrap_around)),
            spec.cell.radius_m,
            reuse=settings.frequency_reuse or 1,
            interference=settings.interference,
            backhaul_bps=settings.backhaul_bps or math.inf,
            backhaul_s=settings.backhaul_s or 0.0,
            keeps=spec.cell.on_leave == "keep",
            one_server=settings.merge_at == "cloud",
            places=_places(spec),
        )


def cloud_protocol(spec: Spec) -> Protocol:
    """Return when the cloud closes a round on the models of edges.

    Raises:
        InputError: If its quorum is too large, or too small for its staleness bound.
    """
    count, bound = spec.edges, spec.cells.cloud_staleness
    quorum, bound = spec.cells.cloud_quorum or count, None if bound == "unbounded" else bound
    if quorum > count:
        raise InputError(f"--cloud-quorum must be from 1 to the number of cells, {count} (--cells), got {quorum}.")
    if bound is not None and quorum * (bound + 1) < count:
        raise InputError(
            f"--cloud-quorum {quorum} times --cloud-staleness {bound} plus 1 must be at least the number of cells, {count} "
            f"(--cells); raise one."
        )
    return Protocol(quorum, bound, "wait")


def _single_cell(spec: Spec, seed: int) -> Cell:
    """Make the only cell of a seed, or what all cells have in common."""
    settings, own = spec.cell, spec.cell.kind
    kind: Value = Cell if own is None else own.value
    if isinstance(kind, FleetFile):
        kind = partial(cell_of_fleet, spec, kind)
    if isinstance(kind, Cell):
        cell = kind
    else:
        refuse_without_effect(spec)
        known: Values = settings.model_dump(exclude=NOT_FOR_CELLS) | {"seed": seed}
        known |= make_radio(spec)
        known["cycles_per_sample"] = cycles_per_sample(spec)
        make = kind.draw if inspect.isclass(kind) and issubclass(kind, Cell) else kind
        with user_errors(f"--cell {own}", kind):
            cell = expect(call(make, f"--cell {own}", known), Cell, "--cell", own)
    if cell.ues != settings.ues:
        raise InputError(f"--cell {own} has {cell.ues} UEs, but there are {settings.ues} (--ues).")
    if settings.distance_m is not None:
        cell = replace(cell, distance_m=np.asarray(settings.distance_m, float))
    if trajectories_of(spec) is not None:
        usual, places = cell.where, _places(spec)
        x_m, y_m = np.where(np.isnan(places), [usual.x_m, usual.y_m], places)
        cell = replace(cell, distance_m=np.hypot(x_m, y_m), angle_rad=np.arctan2(y_m, x_m))
    offset_db = _beyond_path_db(spec, cell, seed)
    return replace(cell, offset_db=offset_db) if offset_db.any() else cell


def trajectories_of(spec: Spec) -> Trajectories | None:
    mobility, fleet = spec.radio.mobility, fleet_of(spec)
    if mobility is None or not isinstance(mobility.value, Trajectories):
        return None
    with input_errors(f"--mobility {mobility}"):
        return mobility.value.of_fleet([] if fleet is None else fleet.names)


def _places(spec: Spec) -> Float[np.ndarray, "2 n"]:
    """Return where files place UEs at first, x and y in metres; NaN for a UE that no file places."""
    paths, fleet, unknown = trajectories_of(spec), fleet_of(spec), np.full(spec.cell.ues, np.nan)
    places = np.stack([unknown, unknown] if fleet is None else [fleet.column("x_m"), fleet.column("y_m")])
    if paths is None:
        return places
    if paths.ues != spec.cell.ues:
        how = f"give --ues {paths.ues}" if fleet is None else f"use names of {spec.cell.kind} in the column ue"
        raise InputError(f"--mobility {spec.radio.mobility} has {paths.ues} UEs, not {spec.cell.ues}; {how}.")
    if spec.cell.distance_m is not None:
        raise InputError(f"--mobility {spec.radio.mobility} gives positions; leave out the others.")
    starts = np.stack(paths.at(0.0))
    return np.where(np.isnan(starts), places, starts)


def _beyond_path_db(spec: Spec, cell: Cell, seed: int) -> PerUe:
    """Return what antennas add to the gain of each UE and walls take from it, in dB."""
    fleet, unknown, inside = fleet_of(spec), np.full(cell.ues, np.nan), np.zeros(cell.ues, bool)
    antenna_db, told = (unknown, unknown) if fleet is None else map(fleet.column, ("antenna_gain_db", "indoor"))
    if spec.radio.indoor:
        inside = indoors(cell.ues, seed, spec.radio.indoor)
    inside = np.where(np.isnan(told), inside, told > 0)
    offset_db = np.nan_to_num(antenna_db)
    if not inside.any():
        return offset_db
    if cell.radio is None:
        raise InputError("UEs are indoors, but the paper's radio has no walls; choose another, such as --radio umi.")
    return offset_db - inside * wall_db(cell.ues, seed, cell.radio.carrier_hz, spec.radio.walls or "low")


def cycles_per_sample(spec: Spec) -> float:
    """Return the CPU cycles per sample of one batch."""
    settings, model = spec.cell, model_of(spec)
    if settings.cycles_per_sample is not None:
        return settings.cycles_per_sample
    if settings.parameters is not None:  # nothing else is known of such a model
        return float(CYCLES_PER_PARAMETER * parameters_of(spec))
    return cycles_of_parameters(model) if settings.cycles == "per-parameter" else counted_cycles(model, sample_of(spec))


def model_bits(spec: Spec) -> float:
    """Return the size in bits of a model sent to a UE."""
    return spec.cell.payload_bits or 32.0 * parameters_of(spec)


def parameters_of(spec: Spec) -> int:
    """Return the numbers of a model, or those that the clock assumes."""
    return round(spec.cell.parameters or payload_bits(model_of(spec)) / 32)


def upload_bits(spec: Spec, objective: Objective | None = None, quorum: int = 0) -> float:
    """Return Z, the size of one upload in bits, in a round of ``quorum`` uploads.

    With ``parameters``, all of these numbers are sent. Unless payload_bits is set, an objective that withholds part of the model uploads less. Below 32 bits per number,
    each array also sends its scale; with top-k, the upload includes the positions of the numbers. With secure
    aggregation, it includes what every member of a round sends to the others.
    """
    if objective is not None and objective.is_alone:
        return NOTHING_BITS
    masks = extra_bits(quorum) if spec.privacy.secure_aggregation else 0
    if spec.cell.payload_bits is not None:
        return spec.cell.payload_bits + masks
    arrays, numbers = weight_shapes(model_of(spec)), None if spec.cell.parameters is None else parameters_of(spec)
    if objective is not None and numbers is None:
        with input_errors(f"{type(objective).__name__} does not fit this model"):
            arrays = without(arrays, jax.eval_shape(objective.withheld, arrays))
    return compressed(**compression_settings(spec)).size(arrays, numbers) + masks


def upload_bits_by_ue(spec: Spec, objective: Objective | None = None, quorum: int = 0) -> float | PerUe:
    """Return the size of one upload in bits, or of each UE's if the ranks of their adapters differ."""
    ranks, radio = ranks_of(spec), spec.radio
    if ranks is None:
        return upload_bits(spec, objective, quorum)
    unfit = {
        "--secure-aggregation": spec.privacy.secure_aggregation,
        "--top-k": radio.top_k not in (None, 1),
        "--compress": radio.compress,
        "--cells": (spec.cells.sites or 1) != 1,
    }
    if flags := [flag for flag, given in unfit.items() if given]:
        raise InputError(
            f"{flags[0]} needs uploads of one size, and UEs have adapters of different ranks (adapter_rank in {spec.cell.kind}). "
            f"Leave one of them out."
        )
    bits = {rank: upload_bits(at_rank(spec, rank), objective, quorum) for rank in set(ranks)}
    return np.array([bits[rank] for rank in ranks])


def work_by_ue(spec: Spec) -> float | PerUe:
    """Return how long each UE computes on a sample, relative to the full adapter; 1 where the fleet file says how long."""
    ranks, fleet = ranks_of(spec), fleet_of(spec)
    if ranks is None or fleet is None:
        return 1.0
    cycles = {rank: cycles_per_sample(at_rank(spec, rank)) / cycles_per_sample(spec) for rank in set(ranks)}
    is_measured = ~np.isnan(np.fmax(fleet.column("compute_s"), fleet.column("samples_per_s")))
    return np.where(is_measured, 1.0, [cycles[rank] for rank in ranks])


def compression_settings(spec: Spec) -> Values:
    """Return the settings of the spec that say how uploads are compressed, as fields of ``Learner``."""
    radio, own = spec.radio, None if spec.radio.compress is None else spec.radio.compress.value
    if own is not None and not isinstance(own, Transform):
        if radio.bits not in (None, 32) or radio.top_k not in (None, 1):
            raise InputError(
                f"--compress {radio.compress} sets the size of an upload itself; leave out --bits and --top-k."
            )
        own = OwnCompression(own)
    return {
        "bits": None if radio.bits == 32 else radio.bits,
        "top_k": None if radio.top_k == 1 else radio.top_k,
        "compress": own,
    }


# ---- radio and energy


def make_energy(spec: Spec) -> EnergyModel:
    """Return the energy model of computing and sending."""
    energy, kappa = ENERGY[spec.energy.model or "yang"], spec.energy.kappa
    return energy if kappa is None else replace(energy, kappa=kappa)


def make_budget(spec: Spec, cell: Cell, samples: float | PerUe) -> Budget | None:
    """Return the energy budget of each UE: its fleet file's, or else the spec's. None if no UE has one."""
    own_j = None if cell.fleet is None else cell.fleet.energy_budget_j
    joules = spec.energy.budget
    if own_j is not None:
        joules = np.where(np.isnan(own_j), np.inf if joules is None else joules, own_j)
    return None if joules is None else Budget.of(joules, make_energy(spec), cell, samples)


def make_radio(spec: Spec) -> Values:
    """Return the radio settings of a spec as keywords of ``Cell.draw``; empty if the spec sets none."""
    settings, named, made = spec.radio, spec.radio.name, Values()
    own = {key: value for key in OF_A_RADIO if (value := dict(settings)[key]) is not None}
    if named is not None and named.value is not None:
        radio = named.value
        if not isinstance(radio, Radio):
            radio = Radio(named.label, partial(_own_loss, named))
        made["radio"] = replace(radio, **own)
    if settings.efficiency_cap is not None:
        made["most_bits_per_s_hz"] = settings.efficiency_cap
    if settings.link in LINKS:
        with input_errors(f"--efficiency-cap {settings.efficiency_cap}"):
            made["link"] = up_to(LINKS[settings.link], settings.efficiency_cap)
    if settings.uplink_share is not None:
        cap = made.get("most_bits_per_s_hz", made["radio"].most_bits_per_s_hz if "radio" in made else None)
        made["link"] = made.get("link", Attenuated(most=math.inf if cap is None else cap)).times(settings.uplink_share)
    if settings.errors is not None:
        rule, _, margin_db = settings.errors.partition(":")
        made["errors"] = Errors(rule, float(margin_db)) if margin_db else Errors(rule)  # type: ignore[arg-type]  # checked
    if settings.outage is not None:
        rule, _, rate_bps = settings.outage.partition(":")
        made["outage"] = Outage(rule, float(rate_bps))  # type: ignore[arg-type]  # checked
    if settings.csi_error_db is not None:
        made["csi_error_db"] = settings.csi_error_db
    if settings.csi_delay is not None:
        made["csi_delay"] = settings.csi_delay
    if settings.band_profile is not None:
        made["profile"] = Profile.of(settings.band_profile).from_second(spec.cell.begin_s or 0.0)
    if settings.fading is not None:
        how, _, k = settings.fading.partition(":")
        made["rician_k"] = float(k) if how == "rician" else np.inf if how == "none" else 0.0
    if settings.downlink in ("multicast", "unicast"):
        dbm = settings.bs_power_dbm
        dbm = dbm if dbm is not None else made["radio"].bs_power_dbm if "radio" in made else 44.0
        up, bits = settings.uplink_share, model_bits(spec)
        if up == 1:
            raise InputError(
                f"--uplink-share 1 leaves no time for --downlink {settings.downlink}; give a smaller share."
            )
        if up is not None:  # the link carries the uplink's share of the time, and a model is sent in the rest
            bits *= up / (1 - up)
        made["downlink"] = Downlink(settings.downlink, 10 ** (dbm / 10) / 1000, bits)
    carrier_hz = made["radio"].carrier_hz if "radio" in made else settings.carrier_hz or 3.5e9
    paths, speed_mps = trajectories_of(spec), settings.speed_mps
    walk = settings.mobility.value if settings.mobility is not None else None
    if paths is not None:
        walk, speed_mps = paths, paths.speed_mps
    if settings.coherence_s is not None:
        made["coherence_s"] = settings.coherence_s
    elif speed_mps and (settings.fading != "none" or walk is not None):
        made["coherence_s"] = coherence_seconds(speed_mps, carrier_hz)
    if walk is not None:
        if isinstance(walk, Trajectories) and not speed_mps:
            raise InputError(f"--mobility {settings.mobility} has no UE that moves; leave it out.")
        if not speed_mps:
            raise InputError(f"--mobility {settings.mobility} needs a --speed-mps, such as 1.4 for walking.")
        made["moves"] = Moves(walk, speed_mps, spec.cell.radius_m)
    return made


def _own_loss(named: Named, radio: Radio, where: Where) -> Float[np.ndarray, " n"]:
    """Return the path loss of each UE in dB, from a user's function."""
    known = {"distance_m": where.distance_m, "x_m": where.x_m, "y_m": where.y_m, "seed": where.seed}
    known |= {"carrier_hz": radio.carrier_hz, "bs_height_m": radio.bs_height_m, "ue_height_m": radio.ue_height_m}
    loss = np.asarray(call(named.value, f"--radio {named}", known), float)
    if loss.shape != where.x_m.shape or not np.isfinite(loss).all():
        raise InputError(
            f"--radio {named} gave {loss.tolist()!r:.80}; expected a path loss in dB for each of {where.x_m.size} UEs."
        )
    return loss


# ---- fleet files


def cell_of_fleet(spec: Spec, file: FleetFile, **settings: Value) -> Cell:
    """Return the cell that would be drawn without a file, overridden by what the file specifies."""
    if spec.cell.distance_m is not None:
        raise InputError(f"--distance-m and --cell {spec.cell.kind} were both given; the file has a column distance_m.")
    if file.ues != spec.cell.ues:
        raise InputError(f"--cell {spec.cell.kind} has {file.ues} devices, but there are {spec.cell.ues} (--ues).")
    taken = inspect.signature(Cell).parameters.keys() | inspect.signature(Cell.draw).parameters.keys()
    drawn = Cell.draw(**{key: value for key, value in settings.items() if key in taken})
    with input_errors(f"--cell {spec.cell.kind}"):
        cell = file.cell(
            drawn,
            spec.learning.batch,
            spec.cell.trace_end or "repeat",
            keeps=spec.cell.on_leave == "keep",
            begin_s=spec.cell.begin_s or 0.0,
        )
    if cell.downlink is not None and cell.fleet is not None and not cell.fleet.shares_band.all():
        raise InputError(
            f"--downlink {spec.radio.downlink} cannot be combined with devices that have dedicated uplinks ({spec.cell.kind}), "
            f"because their downlink is unknown; leave it out, or give --downlink-s."
        )
    return cell


def fleet_of(spec: Spec) -> FleetFile | None:
    kind = None if spec.cell.kind is None else spec.cell.kind.value
    return kind if isinstance(kind, FleetFile) else None


def seconds_a_step(spec: Spec) -> int | None:
    """Return the batch size if a fleet file gives seconds per step, which depend on it; otherwise None."""
    fleet = fleet_of(spec)
    tells = fleet is not None and any("compute_s" in row.numbers for row in fleet.rows)
    return spec.learning.batch if tells else None


def limits_energy(spec: Spec) -> bool:
    """Return whether any UE has an energy budget, from the spec or from its fleet file."""
    fleet = fleet_of(spec)
    return spec.energy.budget is not None or (fleet is not None and fleet.has_energy_budgets)


def refuse_without_effect(spec: Spec) -> None:
    """Refuse settings that would change nothing in this cell."""
    radio, fleet = spec.radio.name, fleet_of(spec)
    unused: dict[str, str]
    if radio is None or radio.value is None:
        unused = dict.fromkeys(OF_A_RADIO[1:], "with the paper's radio; choose another, such as --radio umi")
    else:
        unused = dict.fromkeys(("path_loss_exponent", "fading_scale"), f"with --radio {radio}")
    if fleet is None or not fleet.traces:
        unused["trace_end"] = "without a --cell FILE.csv whose devices have traces (uplink_trace)"
    if not spec.radio.indoor and (fleet is None or np.isnan(fleet.column("indoor")).all()):
        unused["walls"] = "without --indoor, and without a column indoor in --cell FILE.csv"
    roams = (spec.cells.sites or 1) != 1 and spec.radio.moves
    if not roams and (fleet is None or not fleet.has_hours):
        unused["on_leave"] = "without a --cell FILE.csv whose devices have hours (available)"
    if spec.radio.band_profile is None and (fleet is None or not fleet.has_hours):
        unused["begin_s"] = "without --band-profile, and without hours (available) in --cell FILE.csv"
    given, fields = dict(spec.cell) | dict(spec.radio), CellSpec.model_fields | RadioSpec.model_fields
    for key, where in unused.items():
        if given[key] != fields[key].default:
            raise InputError(f"--{key.replace('_', '-')} {given[key]} has no effect {where}.")
