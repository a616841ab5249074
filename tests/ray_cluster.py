"""Start a Ray cluster of two nodes on loopback and print its address; stop it when standard input closes.

A line "kill" on standard input kills all processes of the second node while a task runs on it. The answer is "killed".
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]  # an extra

LOOPBACK = "127.0.0.1"
TASK = b"ray::_on_cluster"  # the title that Ray gives to a process while it runs a task


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        return server.getsockname()[1]


def wait_until_open(port: int) -> None:
    while True:
        try:
            socket.create_connection((LOOPBACK, port), 1).close()
            return
        except OSError:
            time.sleep(0.1)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def is_training(pid: int) -> bool:
    return any(Path(f"/proc/{child}/cmdline").read_bytes().startswith(TASK) for child in children(pid))


def kill_while_training(raylet: int) -> None:
    while not is_training(raylet):
        time.sleep(0.01)
    for pid in (raylet, *children(raylet)):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    port = free_port()
    head = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = cluster.add_node(num_cpus=1)
        wait_until_open(port)
        print(f"ray://{LOOPBACK}:{port}", flush=True)
        for line in sys.stdin:
            assert line == "kill\n"
            kill_while_training(second.all_processes["raylet"][0].process.pid)
            cluster.remove_node(second, allow_graceful=False)
            print("killed", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
