"""Compare the simulator, calibrated from a federation's first rounds, with the rounds that follow.

    python benchmarks/sim_to_real.py

Runs ``perfeds2 federate local`` with 20 devices, each a process behind TLS. Their computing times (``--slow``) and
uplink rates (``--uplink-bps``) are imposed, drawn log-uniformly over a factor of six. ``perfeds2 calibrate --rounds
50`` then fits the devices from the first 50 rounds, and the simulator's clock is compared with the next 200 rounds.
Prints one JSON line.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from perfeds2.deployment.calibrate import calibrate
from perfeds2.deployment.mqtt.local import run_locally
from perfeds2.deployment.setup import Setup
from perfeds2.learning.task import payload_bits


def imposed(devices: int, seed: int, seconds: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Draw each device's seconds of computing and of sending, log-uniformly between ``seconds``."""
    low, high = np.log(seconds)
    drawn = np.exp(np.random.default_rng(seed).uniform(low, high, (2, devices)))
    return drawn[0], drawn[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--quorum", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=250)
    parser.add_argument("--first", type=int, default=50, help="number of rounds used for calibration")
    parser.add_argument("--seconds", type=float, nargs=2, default=(0.5, 3.0), help="of computing, and of sending")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    compute_s, send_s = imposed(given.devices, given.seed, tuple(given.seconds))
    plain = Setup.from_texts({"devices": given.devices})
    rates = payload_bits(plain.model()) / send_s
    setup = Setup.from_texts(
        {"devices": given.devices, "quorum": given.quorum, "rounds": given.rounds, "max-staleness": 20, "gather-s": 300}
        | {"slow": ",".join(f"{ue}={seconds:.4f}" for ue, seconds in enumerate(compute_s))}
        | {"uplink-bps": ",".join(f"{ue}={rate:.6g}" for ue, rate in enumerate(rates))}
    )
    with tempfile.TemporaryDirectory(prefix="perfeds2-sim-to-real-") as folder:
        path = Path(folder) / "run"
        run_locally(setup, path)
        made = calibrate(path, path / "fleet.csv", given.first)
        fitted_s = made.devices.compute_s.to_numpy()
        real_s, predicted_s = made.seconds
        found = {
            "devices": given.devices,
            "quorum": given.quorum,
            "fitted_rounds": made.rounds,
            "predicted_rounds": made.checked[1] - made.checked[0],
            "real_s": round(real_s, 2),
            "predicted_s": round(predicted_s, 2),
            "gap": round(made.gap, 4),
            "compute_over_imposed": np.round(
                np.quantile(fitted_s / compute_s[made.devices.index], [0.0, 0.5, 1.0]), 3
            ).tolist(),
            "rate_over_imposed": np.round(
                np.quantile([rate / rates[ue] for ue, rate in made.devices.rate_bps.items()], [0.0, 0.5, 1.0]), 3
            ).tolist(),
            "load_average": round(os.getloadavg()[0], 1),
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main()
