"""Run training jobs on a Ray cluster."""

import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from perfeds2.errors import InputError, need_extra
from perfeds2.files import Json
from perfeds2.learning.compiled import deterministic, keep_compiled
from perfeds2.runs.trainer import Workbench
from perfeds2.runs.workers import ONE_CORE, Inbox, Job, Place, Reply, TrainingWorker, job_as_text, serve_text


@dataclass(frozen=True)
class Ray:
    """A local Ray instance, or the cluster at an address; the cluster needs perfeds2 installed but no shared disk."""

    count: int
    has_gpus: bool
    train: Callable[[Json], Any]  # starts a job, given as JSON values, on the cluster
    close: Callable[[], None]

    @classmethod
    def open(cls, on: str, workers: int | None) -> "Ray":
        need_extra("--on ray", "ray", "ray")
        import ray  # pyright: ignore[reportMissingImports]  # an extra

        started = not ray.is_initialized()
        if started:
            local: Json = {"include_dashboard": False, "num_cpus": workers} if on == "ray" else {}
            for patient in (True, True, False):
                try:
                    ray.init("local" if on == "ray" else on, log_to_driver=False, logging_level=logging.ERROR, **local)
                    break
                except (OSError, ValueError, RuntimeError) as error:
                    if patient and isinstance(error, ConnectionAbortedError):  # a busy head gives up after 30 s
                        continue
                    raise InputError(f"--on {on}: Ray cannot be reached: {_reason(error)}") from None
        has = ray.cluster_resources()
        gpus = int(has.get("GPU", 0))
        environment = {"env_vars": deterministic() if gpus else ONE_CORE}
        remote = ray.remote(num_cpus=1, num_gpus=int(gpus > 0), max_retries=0, runtime_env=environment)
        count = workers or gpus or max(1, int(has.get("CPU", 1)))
        return cls(count, gpus > 0, remote(_on_cluster).remote, ray.shutdown if started else lambda: None)


def _reason(error: Exception) -> str:
    """Return the text of an error of Ray on one line, without tracebacks."""
    return " ".join(re.sub(r"(?m)^Traceback .*\n|^  File .*\n(    .*\n)*", "", str(error)).split())


class OnRay(TrainingWorker):
    """A worker slot on a Ray cluster, for one task at a time."""

    def __init__(self, number: int, inbox: Inbox, place: Place, ray: Ray) -> None:
        super().__init__(number, inbox, place)
        self._ray, self._tasks = ray, ThreadPoolExecutor(1)

    def give(self, job: Job) -> None:
        self.jobs.append(job)
        self.say(job, {"started": True})
        self._running = self._ray.train(job_as_text(job, self.place) | {"store": None, "live": None})
        self._tasks.submit(self._wait, job)

    def _wait(self, job: Job) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        try:
            reply: Any = ray.get(self._running)
            for one, result in zip(job.trainings, reply.pop("results", ()), strict=False):
                self.place.store.put(one.key, result)
        except Exception as error:  # the process, the machine or the connection died
            reply = {"error": f"{type(error).__name__}: {_reason(error)}", "again": True, "died": True}
        self.say(job, reply)

    def stop(self) -> None:
        if self.jobs:
            import ray  # pyright: ignore[reportMissingImports]

            ray.cancel(self._running, force=True)

    def end(self) -> None:
        self._tasks.shutdown()


def _on_cluster(asked: Json) -> Reply:
    keep_compiled()
    return serve_text(asked, Workbench(), lambda _: None)
