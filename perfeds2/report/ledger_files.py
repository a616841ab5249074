"""How is the ledger written for other programs: claims.csv and claims.json?"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from perfeds2.files import write_text
from perfeds2.paper.claims import LEAST_SEEDS, LEVEL, SMALLEST_OF_NOTE, Entry, Finding, Statistic, distinct_tests
from perfeds2.report.ledger import VERDICTS, Ledger, differing, measures, rule


def write_ledger(ledgers: Sequence[Ledger], out: Path) -> list[Path]:
    """Write ``claims.csv``, a row per comparison, and ``claims.json``. Returns both paths."""
    written = [out / "claims.csv", out / "claims.json"]
    rows = [
        {"ledger": each.label} | _about(entry) | _read(entry, "claim_verdict", "claim_") | _measured(finding)
        for each in ledgers
        for entry in each.entries
        for finding in entry.findings
    ]
    table = pd.DataFrame(rows).drop(columns="values", errors="ignore")
    write_text(written[0], table.to_csv(index=False, lineterminator="\n"))
    write_text(written[1], ledger_json(ledgers))
    return written


def ledger_json(ledgers: Sequence[Ledger]) -> str:
    """Return the ledger as JSON: the rule, the counts, and every claim with its comparisons; a second ledger is ``beside``."""
    rules = {"rule": rule(), "least_seeds": LEAST_SEEDS, "level": LEVEL, "smallest_of_note": SMALLEST_OF_NOTE}
    whole = rules | _as_data(ledgers[0])
    if len(ledgers) > 1:
        whole |= {"verdicts_differ": differing(ledgers), "beside": _as_data(ledgers[1])}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _as_data(one: Ledger) -> dict[str, Any]:
    found = Counter(entry.verdict for entry in one.entries)
    return {
        "label": one.label,
        "counts": {verdict: found[verdict] for verdict in VERDICTS},
        "tests": len(distinct_tests(finding for entry in one.entries for finding in entry.findings)),
        "claims": [
            _about(entry) | _read(entry) | {"comparisons": [_measured(finding) for finding in entry.findings]}
            for entry in one.entries
        ],
        "best_fedavg": [
            {**asdict(best.place), "measured": measured, "best_fedavg": rival, **_numbers(difference)}
            for best in one.bests
            for measured, (rival, difference) in measures(best).items()
        ],
    }


def _about(entry: Entry) -> dict[str, Any]:
    return {"claim": entry.claim.number, "sentence": entry.claim.sentence, "where": entry.claim.where}


def _read(judged: Entry | Finding, verdict: str = "verdict", prefix: str = "") -> dict[str, Any]:
    """Return all verdicts on a claim or a comparison."""
    return {
        verdict: judged.verdict,
        f"{prefix}after_holm": judged.after_holm,
        f"{prefix}of_note": judged.of_note,
        f"{prefix}verdict_as_it_is": judged.verdict_as_it_is,
        f"{prefix}verdict_by_loss": judged.verdict_by_loss,
        f"{prefix}learned": judged.learned,
    }


def _measured(finding: Finding) -> dict[str, Any]:
    difference = finding.difference
    return {
        **{f"better_{name}": value for name, value in asdict(finding.comparison.better).items()},
        **{f"worse_{name}": value for name, value in asdict(finding.comparison.worse).items()},
        "seeds": len(difference["values"]),
        **_numbers(difference),
        "values": difference["values"],
        "p": finding.p,
        "p_holm": finding.p_holm,
        **_numbers(finding.as_it_is, "as_it_is_"),
        **_numbers(finding.loss, "loss_"),
        "better_diverged": finding.diverged[0],
        "worse_diverged": finding.diverged[1],
        "better_median_time_s": finding.times_s[0],
        "worse_median_time_s": finding.times_s[1],
        **_read(finding),
    }


def _numbers(difference: Statistic | None, prefix: str = "") -> dict[str, float | None]:
    names = {"difference": "mean", "low": "low", "high": "high"}
    return {f"{prefix}{name}": None if difference is None else difference[key] for name, key in names.items()}
