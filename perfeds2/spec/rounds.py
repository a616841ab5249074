"""Build the rounds that a spec describes: the protocol, the participation shares and the schedule."""

import inspect

import numpy as np

from perfeds2.allocation import schedule as schedules
from perfeds2.allocation.schedulers import replacing_absent
from perfeds2.allocation.shares import check_shares, equal_shares, nearest_feasible
from perfeds2.errors import InputError, input_errors
from perfeds2.network.cell import Cell
from perfeds2.network.link import PerUe
from perfeds2.spec.cells import upload_bits_by_ue
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Named, Value, call
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.state import Schedule


def protocol_of(spec: Spec, mode: str) -> Protocol:
    """Return the protocol of a mode (SYN, S2 or ASY) for the cell of a spec."""
    if mode == "SYN":
        return Protocol(spec.cell.ues // spec.edges)
    rest_rounds = spec.protocol.rest_rounds or 1
    if mode == "ASY":
        return Protocol(1, rest_rounds=rest_rounds)
    assert spec.protocol.quorum is not None
    if spec.protocol.unplanned == "rest":
        return Protocol(spec.protocol.quorum, rests=True)
    return Protocol(spec.protocol.quorum, bound_of(spec), spec.protocol.stale, rest_rounds=rest_rounds)


def bound_of(spec: Spec) -> int | None:
    return None if spec.protocol.max_staleness == "unbounded" else spec.protocol.max_staleness


def make_shares(spec: Spec, cell: Cell, seed: int, samples: float, *, planned: bool) -> PerUe:
    """Return the participation target of each UE, shape (n,).

    If rounds are planned, the shares of a rule are moved to the nearest feasible ones, except equal shares.
    """
    protocol, given = protocol_of(spec, "S2"), spec.protocol.shares
    bound = protocol.max_staleness if planned else None
    if not isinstance(given, Named):
        shares = np.asarray(given, float)
        check_shares(shares, protocol.quorum, bound)
        return shares
    known = {"cell": cell, "ues": cell.ues, "quorum": protocol.quorum, "seed": seed, "samples": samples}
    shares = np.asarray(
        call(given.value, f"--shares {given}", known | {"payload_bits": upload_bits_by_ue(spec)}), float
    )
    if given.source and (shares.shape != (cell.ues,) or not (np.isfinite(shares).all() and (shares >= 0).all())):
        raise InputError(
            f"--shares {given} gave {shares.tolist()!r:.80}; expected a number from 0 for each of {cell.ues} UEs."
        )
    shares = shares / shares.sum() if given.source else shares
    if given.value is equal_shares or not planned:
        return shares
    return nearest_feasible(shares, protocol.quorum, bound)


def plan_rounds(spec: Spec, cell: Cell, seed: int, samples: float) -> tuple[PerUe, Schedule | None]:
    """Return the shares, and the schedule that realises them; None if rounds close on the first arrivals.

    Raises:
        InputError: If the shares or the schedule are infeasible.
    """
    protocol, named = protocol_of(spec, "S2"), spec.protocol.schedule
    shares_text = spec.protocol.shares if isinstance(spec.protocol.shares, Named) else "given"
    with input_errors(f"--schedule {named} --shares {shares_text}"):
        shares = make_shares(spec, cell, seed, samples, planned=named.value is not None)
        if named.value is None:
            if protocol.rests:
                raise InputError("--unplanned rest needs a plan; choose a --schedule other than first.")
            return shares, None
        if {"round_", "moment"} & inspect.signature(named.value).parameters.keys():  # it plans rounds itself
            return shares, checked_when_opened(named, protocol, named.value)
        known = {"cell": cell, "shares": shares, "quorum": protocol.quorum}
        known["rounds"] = min(spec.run.rounds or schedules.ROWS, schedules.MAX_ROWS)
        more = {"seed": seed, "samples": samples, "payload_bits": upload_bits_by_ue(spec)}
        planned = call(named.value, f"--schedule {named}", known | more)
        if callable(planned):
            return shares, skipping_absent(
                named, protocol, cell, checked_when_opened(named, protocol, planned)
            )  # checked by the clock
        rows = np.asarray(planned)
        if rows.ndim != 2 or rows.shape[1:] != (protocol.quorum,) or rows.dtype.kind not in "iu":
            raise ValueError(
                f"expected rows of {protocol.quorum} UEs (--quorum), got {rows.dtype} of shape {rows.shape}."
            )
        schedules.check_schedule(rows, cell.ues, protocol.max_staleness, protocol.stale)
    return shares, skipping_absent(named, protocol, cell, schedules.as_schedule(rows))


def checked_when_opened(named: Named, protocol: Protocol, schedule: Value) -> Schedule:
    """Check a schedule that chooses UEs when a round opens, and return it.

    It cannot be known in advance whether it leaves a UE out for too long.

    Raises:
        InputError: If a built-in schedule could wait forever under the staleness rule.
    """
    if not named.source and protocol.max_staleness is not None and protocol.stale != "restart":
        raise InputError(
            f"--schedule {named} may leave out a UE for more than {protocol.max_staleness} rounds, and with --stale {protocol.stale} "
            f"its round could wait forever; use --stale restart, --max-staleness unbounded or --unplanned rest."
        )
    return schedule


def skipping_absent(named: Named, protocol: Protocol, cell: Cell, schedule: Schedule) -> Schedule:
    """Make a built-in schedule skip UEs that are away when a round opens.

    A schedule that must be followed exactly to keep the staleness bound is left unchanged; its rounds wait for absent UEs.
    """
    comes_and_goes = cell.fleet is not None and cell.fleet.presence is not None
    to_the_letter = protocol.max_staleness is not None and protocol.stale != "restart"
    if named.source or not comes_and_goes or to_the_letter or "moment" in inspect.signature(schedule).parameters:
        return schedule
    return replacing_absent(schedule)
