"""What travels over the broker? A few small JSON texts, and arrays as safetensors bytes in chunks. Never code.

    perfeds2/run                          server, retained   Run: which run there is, and its settings
    perfeds2/model/VERSION/CHUNK          server, retained   a model, while anybody works on it
    perfeds2/job/device-N                 server             JobMessage: do this, with that model
    perfeds2/here/device-N                device, retained   Here; the broker says it for a device that died (last will)
    perfeds2/reply/device-N/TICKET/head   device             Head: what the answer is, and how many chunks follow
    perfeds2/reply/device-N/TICKET/CHUNK  device             the update

Whatever comes in is announced by a small text with its size first. What was not announced, or is larger than it may be,
is dropped before memory is taken for it.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from safetensors.numpy import load, save

from perfeds2.deployment.transport import Arrays, Kind

RUN = "perfeds2/run"
EVERYBODY_HERE, EVERY_REPLY = "perfeds2/here/+", "perfeds2/reply/+/+/+"
HEAD = "head"
CHUNK_BYTES = 240 * 1024  # with its topic below the 256 KiB a broker lets through
TEXT_BYTES = 64 * 1024  # the longest JSON text: a run's settings
SLACK_BYTES = 16 * 1024  # by how much an update may be longer than its model: other writers name and pad differently

Name = Annotated[str, StringConstraints(pattern=r"^[0-9a-zA-Z-]{0,64}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[int, Field(ge=0, lt=2**53)]
Words = Annotated[str, StringConstraints(max_length=500)]


def model_topic(version: int, chunk: int | Literal["+"]) -> str:
    return f"perfeds2/model/{version}/{chunk}"


def job_topic(device: int) -> str:
    return f"perfeds2/job/device-{device}"


def here_topic(device: int) -> str:
    return f"perfeds2/here/device-{device}"


def reply_topic(device: int, ticket: int, part: int | str) -> str:
    return f"perfeds2/reply/device-{device}/{ticket}/{part}"


def number(text: str) -> int | None:
    """A number in a topic, written the one way it can be."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 17 and str(int(text)) == text else None


def device_number(name: str) -> int | None:
    return number(name.removeprefix("device-")) if name.startswith("device-") else None


class Text(BaseModel):
    """One of the JSON texts."""

    model_config = ConfigDict(strict=True, frozen=True, ser_json_inf_nan="constants")

    def to_bytes(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


class Run(Text):
    """Which run the server has."""

    run: Name
    settings: Annotated[str, StringConstraints(max_length=TEXT_BYTES)]  # as in federation.toml, without paths
    own_model: bool = False  # the devices' own: each has it in a file


class Announcement(Text):
    """What goes ahead of arrays in chunks."""

    run: Name
    version: Number
    chunks: Number = 0
    bytes: Number = 0
    sha256: Digest = "0" * 64


class JobMessage(Announcement):
    """One job for one device. The model follows."""

    ticket: Number
    kind: Kind
    merged: Number | None = None  # the last of this device's jobs that was merged, where devices keep something


class Here(Text):
    """A device is here, or is not."""

    here: bool
    session: Name = ""
    run: Name | None = None  # the one it is ready for; "" for none; where it does not say, any
    error: Words | None = None  # why it cannot take part in the run


class Head(Announcement):
    """What a device answers. The update follows, if there is one."""

    metrics: Annotated[Mapping[str, float], Field(max_length=16)] = {}
    compute_s: float = 0.0
    error: Words | None = None


Any_ = TypeVar("Any_", bound=Text)


def read(kind: type[Any_], data: bytes) -> Any_ | None:
    """One of the texts, or None if it is not a proper one."""
    if len(data) > 2 * TEXT_BYTES:
        return None
    try:
        return kind.model_validate_json(data)
    except (ValidationError, ValueError):
        return None


@dataclass(frozen=True)
class Parcel:
    """Arrays as they travel."""

    data: bytes

    @classmethod
    def of(cls, arrays: Arrays) -> "Parcel":
        return cls(save({name: np.asarray(values, order="C") for name, values in arrays.items()}))

    @cached_property
    def chunks(self) -> list[bytes]:
        return [self.data[start : start + CHUNK_BYTES] for start in range(0, len(self.data), CHUNK_BYTES)]

    @cached_property
    def announced(self) -> dict[str, Any]:
        """The fields that go ahead of the chunks."""
        size = len(self.data)
        return {"chunks": chunks_of(size), "bytes": size, "sha256": hashlib.sha256(self.data).hexdigest()}


def chunks_of(size: int) -> int:
    return math.ceil(size / CHUNK_BYTES)


@dataclass
class Assembly:
    """Chunks that come in, up to what was announced. They may come twice and in any order."""

    size: int
    sha256: str
    parts: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def announced(cls, said: Announcement, most: int) -> "Assembly | None":
        """None if more is announced than may come."""
        fits = 0 < said.bytes <= most and said.chunks == chunks_of(said.bytes)
        return cls(said.bytes, said.sha256) if fits else None

    def put(self, chunk: int, data: bytes) -> bool:
        """Whether the chunk is one that was announced."""
        if not (0 <= chunk < chunks_of(self.size) and len(data) == min(CHUNK_BYTES, self.size - chunk * CHUNK_BYTES)):
            return False
        self.parts[chunk] = data
        return True

    @property
    def complete(self) -> bool:
        return len(self.parts) == chunks_of(self.size)

    @property
    def data(self) -> bytes | None:
        """What came; None if it is not what was announced."""
        data = b"".join(self.parts[chunk] for chunk in sorted(self.parts))
        return data if hashlib.sha256(data).hexdigest() == self.sha256 else None

    def arrays(self) -> dict[str, np.ndarray]:
        """Raises ValueError if what came is not what was announced, or not arrays."""
        data = self.data
        if data is None:
            raise ValueError("the checksum is another one than announced")
        try:
            return load(data)
        except Exception as error:  # whatever they sent
            raise ValueError(f"not safetensors ({type(error).__name__})") from None
