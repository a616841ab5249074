"""Time rounds in Flower's simulator: its FedAvg strategy, 20 nodes on Ray with a core each, one local step in PyTorch.

The clock is read when the server's rounds end, so the start of Ray is not counted.
"""

import os
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # must precede the import of flwr

import numpy as np
import torch
import workload as work
from flower_client import client, network
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def main() -> None:
    given = work.options()
    torch.manual_seed(given.seed)
    server, last = ServerApp(), work.WARM_UP + given.rounds
    marks: list[tuple[float, float]] = []  # wall and CPU seconds at the end of the warm-up and of the last round
    learned: list[float] = []

    def look(number: int, arrays: ArrayRecord) -> None:
        if number == work.WARM_UP:
            learned.append(work.loss([np.asarray(w).T for w in arrays.to_torch_state_dict().values()], given.seed))
        if number in (work.WARM_UP, last):
            marks.append((time.perf_counter(), work.cpu_s()))

    @server.main()
    def serve(grid: Grid, _: Context) -> None:
        strategy = FedAvg(fraction_train=work.QUORUM / work.UES, fraction_evaluate=0.0, min_available_nodes=work.UES)
        told = ConfigRecord({"seed": given.seed})
        strategy.start(grid, ArrayRecord(network().state_dict()), last, train_config=told, evaluate_fn=look)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {}}
    run_simulation(server, client, work.UES, backend_config=resources)
    (wall, cpu), (wall_end, cpu_end) = marks
    packages = ["flwr", "ray", "torch"]
    work.say("Flower simulator", packages, given.rounds, wall_end - wall, cpu_end - cpu, learned[0])


if __name__ == "__main__":
    main()
