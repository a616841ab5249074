"""What does a federation need of the network? Three verbs: dispatch a request, poll for replies, say who is there.

``flower/`` is one engine that can do this; ``in_process.py`` is another, for tests, and the place to start reading before
adding a third, which needs nothing of the first.
"""

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Arrays = Mapping[str, np.ndarray]
Kind = Literal["train", "evaluate"]


@dataclass(frozen=True)
class Request:
    """One job a device is asked to do."""

    ticket: int  # never used twice in a run, not even after a restart
    ue: int
    version: int  # of the model that goes with it
    kind: Kind = "train"


@dataclass(frozen=True)
class Reply:
    """What came back. Nothing in it is trusted, except who sent it and when it was complete here."""

    ue: int  # whose connection it came over
    ticket: int = -1  # what the sender says it answers
    version: int = -1
    update: Arrays | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    compute_s: float = 0.0
    received_s: float = 0.0  # on the transport's clock
    error: str | None = None  # the job failed; in words
    gone: bool = False  # it failed because the device went away: nobody's fault
    on: int | None = None  # the ticket of the job it came back on, where the transport knows better than the sender


@typing.runtime_checkable
class Transport(typing.Protocol):
    """Reaches devices, known by their UE numbers."""

    def dispatch(self, request: Request, params: Arrays) -> bool:
        """Send a request with its model. False: it could not be sent."""
        ...

    def poll(self, wait_s: float) -> list[Reply]:
        """The replies that came in since, after waiting for the first of them for at most so long."""
        ...

    def members(self) -> frozenset[int]:
        """Which UEs can be reached now."""
        ...

    def now(self) -> float:
        """Seconds on a clock that never runs backwards; only differences matter."""
        ...
