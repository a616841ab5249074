"""Compare the speed of perfeds2 with its peers on the same work.

    python benchmarks/peers/run.py                            (creates the environments first, which takes minutes)
    python benchmarks/peers/run.py --only perfeds2,torch --repeats 3
    python benchmarks/peers/run.py --gpu --here               (on a GPU, with the packages of this Python)

Every peer has its own virtual environment under .benchmarks/ and runs in a fresh process. The peers take turns, so a
busy machine slows all of them; a ratio is the median of the ratios per turn. Uses only the standard library.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess  # only runs the Pythons of the environments made here
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LEARNED = 2.25  # every peer's loss must be below this after the warm-up; guessing gives ln 10 = 2.303


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    environment: str  # packages are in <environment>.txt, the script is on_<environment>.py
    rounds: int  # a few seconds on an idle machine
    threads: int | None = None  # for PyTorch and JAX; None leaves the choice to them
    exact: bool = False  # meta-gradients with the exact Hessian
    script: str = ""  # on_<script>.py instead
    more: tuple[str, ...] = ()  # further arguments of the script


ROWS = (
    Row("perfeds2", "perfeds2", 3_000),
    Row("perfeds2, 1 thread", "perfeds2", 1_500, threads=1),
    Row("bare PyTorch loop", "torch", 1_000),
    Row("bare PyTorch loop, 1 thread", "torch", 1_000, threads=1),
    Row("pfl-research", "pfl", 500),
    Row("pfl-research, 1 thread", "pfl", 500, threads=1),
    Row("FedJAX", "fedjax", 400),
    Row("Flower simulator", "flower", 40),
    Row("perfeds2, exact Hessian", "perfeds2", 1_000, exact=True),
    Row("torch.func, exact Hessian", "torch", 300, exact=True),
    Row("torch.func, exact Hessian, 1 thread", "torch", 300, threads=1, exact=True),
)
ON_GPU = (
    Row("perfeds2, replay alone, exact Hessian", "perfeds2", 20_000, exact=True, more=("--replay",)),
    Row("torch.func, exact Hessian, CUDA graphs", "torch", 5_000, exact=True, script="torch_gpu", more=("--graphs",)),
    Row("FedJAX", "fedjax", 300),
    Row("perfeds2, replay alone", "perfeds2", 20_000, more=("--replay",)),
    Row("bare PyTorch loop, CUDA graphs", "torch", 10_000, script="torch_gpu", more=("--graphs",)),
    Row("pfl-research", "pfl", 300),
    Row("bare JAX loop, exact Hessian", "jax", 20_000, exact=True),
    Row("bare JAX loop", "jax", 20_000),
    Row("bare PyTorch loop", "torch", 1_000, script="torch_gpu"),
    Row("torch.func, exact Hessian", "torch", 500, exact=True, script="torch_gpu"),
)
Measured = dict[Row, list[dict]]  # one JSON object per turn
Failed = dict[Row, str]  # the reason


def main() -> None:
    given = _options()
    every = ON_GPU if given.gpu else ROWS
    rows = [row for row in every if not given.only or row.environment in given.only.split(",")]
    if not rows:
        sys.exit(f"--only {given.only} names none of {', '.join(sorted({row.environment for row in every}))}.")
    measured, failed = measure(rows, given)
    text = table(measured, failed)
    print(text)
    if given.out:
        lines = [{"row": row.name, "turn": t, **line} for row in measured for t, line in enumerate(measured[row])]
        given.out.write_text(json.dumps({"machine": machine(), "lines": lines}, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="environments, with commas between: perfeds2,torch,pfl,fedjax,flower")
    parser.add_argument("--gpu", action="store_true", help="the rows for a GPU")
    parser.add_argument("--here", action="store_true", help="run everything in this Python; make no environments")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--turns",
        type=int,
        default=1,
        help="turns per process, which saves start-up and compilation on a GPU",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the rounds; less for a busy machine")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of one script")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="after that no further script is started")
    parser.add_argument("--cache", type=Path, default=ROOT / ".benchmarks", help="where the environments are made")
    parser.add_argument("--out", type=Path, help="a JSON file for every turn's numbers")
    return parser.parse_args()


def measure(rows: Sequence[Row], given: argparse.Namespace) -> tuple[Measured, Failed]:
    """Measure all rows in turns. A row that cannot be installed or run is recorded with its reason and then skipped."""
    measured: Measured = {row: [] for row in rows}
    failed: Failed = {}
    began = time.monotonic()
    names = sorted({row.environment for row in rows})
    broken = {name: "" if given.here else environment(name, given.cache) for name in names}
    for row in rows:
        if broken[row.environment]:
            failed[row] = f"not installed: {broken[row.environment]}"
    for turn in range(given.repeats):
        for row in rows:
            if row in failed:
                continue
            if time.monotonic() - began > given.limit_s:
                failed[row] = "not run: no time was left"
                continue
            said, why = run(row, given)
            if said is None:
                failed[row] = f"not run: {why}"
            elif said[0]["final_loss"] >= LEARNED:
                failed[row] = f"did not learn: loss {said[0]['final_loss']:.2f} after the warm-up"
            else:
                measured[row] += said
                speeds = ", ".join(f"{line['rounds_per_s']:.4g}" for line in said)
                print(f"turn {turn + 1}: {row.name}: {speeds} rounds/s", file=sys.stderr, flush=True)
    return measured, failed


def environment(name: str, cache: Path) -> str:
    """Create a peer's environment if its list of packages is new. Return the error; empty on success."""
    folder, wanted = cache / "venvs" / name, (HERE / f"{name}.txt").read_text()
    mark = folder / "installed.txt"
    if mark.exists() and mark.read_text() == wanted:
        return ""
    print(f"installing {name} …", file=sys.stderr, flush=True)
    python = str(folder / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", "-r", str(HERE / f"{name}.txt")],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)  # noqa: S603 (see above)
        if done.returncode:
            return _last_line(done.stderr)
    mark.write_text(wanted)
    return ""


def run(row: Row, given: argparse.Namespace) -> tuple[list[dict] | None, str]:
    """Run a row's script in a fresh process. Return its JSON lines, or None and the reason."""
    python = sys.executable if given.here else given.cache / "venvs" / row.environment / "bin" / "python"
    script = HERE / f"on_{row.script or row.environment}.py"
    rounds = max(int(row.rounds * given.share), 1)
    command = [str(python), str(script), "--rounds", str(rounds), "--seed", str(given.seed), *["--exact"] * row.exact]
    command += [*row.more, "--turns", str(given.turns)]
    threads = {} if row.threads is None else {name: str(row.threads) for name in ("OMP_NUM_THREADS", "NPROC")}
    try:
        done = subprocess.run(  # noqa: S603 (see above)
            command, env={**os.environ, **threads}, capture_output=True, text=True, timeout=given.timeout_s
        )
    except subprocess.TimeoutExpired:
        return None, f"{rounds} rounds took more than {given.timeout_s:g} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    return ([json.loads(line) for line in lines], "") if lines else (None, _last_line(done.stderr))


def _last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"])[-1]


def table(measured: Measured, failed: Failed) -> str:
    """Return a Markdown table. Ratios are perfeds2's speed over the row's, for the same objective and threads."""
    head = "| | rounds/s | rounds per CPU second | perfeds2 is × as fast (wall) | × (CPU) | loss | versions |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for row, said in measured.items():
        if row in failed:
            lines.append(f"| {row.name} | {failed[row]} | | | | | |")
            continue
        alike = [r for r in measured if r.environment == "perfeds2" and r.exact == row.exact]
        ours = next((r for r in alike if r.threads == row.threads), alike[0] if alike else None)
        ratios = ["", ""]
        if ours is not None and ours != row and ours not in failed:
            ratios = [ratio(measured[ours], said, key) for key in ("rounds_per_s", "cpu_rounds_per_s")]
        speeds = [middle([line[key] for line in said]) for key in ("rounds_per_s", "cpu_rounds_per_s")]
        learned = f"{statistics.median(line['final_loss'] for line in said):.2f}"
        versions = said[0]["version"] + (f" ({said[0]['shim']})" if said[0]["shim"] else "")
        lines.append(f"| {row.name} | {' | '.join([*speeds, *ratios])} | {learned} | {versions} |")
    return "\n".join([*lines, "", machine()])


def ratio(ours: Sequence[dict], theirs: Sequence[dict], key: str) -> str:
    return middle([a[key] / b[key] for a, b in zip(ours, theirs, strict=True)])


def middle(values: Sequence[float]) -> str:
    """Format the median and the range."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def machine() -> str:
    load = "unknown" if not hasattr(os, "getloadavg") else f"{os.getloadavg()[2]:.1f}"
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}; "
        f"load over the last 15 minutes {load}."
    )


if __name__ == "__main__":
    main()
