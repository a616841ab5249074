"""The messages on the broker: small JSON texts, and arrays as chunks of safetensors bytes. Never code.

    NAME/run                          server, retained   Run: the current run and its settings
    NAME/trust                        server, retained   the broker's authorities and revocations (link.py)
    NAME/model/VERSION/CHUNK          server, retained   a model, encrypted, while any device works on it
    NAME/job/device-N                 server             JobMessage: a job, and which model it needs, with its key
    NAME/here/device-N                device             Here; also the last will of a device that dies
    NAME/reply/device-N/TICKET/head   device             Head: the reply, and how many chunks follow
    NAME/reply/device-N/TICKET/CHUNK  device             the update

NAME is that of the federation, perfeds2 by default; in another federation devices are called NAME.device-N.

A small text announces the size of all arrays before they arrive. Chunks that were not announced, or are too large, are
dropped before any memory is allocated for them. Every model has a key of its own, which only jobs for it carry.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal, TypedDict, TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from safetensors.numpy import load, save

from perfeds2.deployment.credentials import FEDERATION, device_number, federated_name
from perfeds2.deployment.transport import Arrays, Asked, Kind, SignedKey

HEAD = "head"
CHUNK_BYTES = 240 * 1024  # with its topic, below the broker's limit of 256 KiB
MOST_SIGNED = 1200  # characters of a key for masks with its certificate: a list of 100 fits into a message
TEXT_BYTES = 64 * 1024  # longest settings of a run
NONCE = bytes(12)  # of AES-256-GCM; zero, because every key encrypts one model only
SLACK_BYTES = 16 * 1024  # by how much an update may exceed its model: other writers name and pad differently

Name = Annotated[str, StringConstraints(pattern=r"^[0-9a-zA-Z-]{0,64}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[int, Field(ge=0, lt=2**53)]
Words = Annotated[str, StringConstraints(max_length=500)]


@dataclass(frozen=True)
class Topics:
    """The topics of a federation. Several federations may share a broker."""

    federation: str = FEDERATION

    def device(self, number: int | str) -> str:
        return federated_name(self.federation, f"device-{number}")

    @property
    def run(self) -> str:
        return f"{self.federation}/run"

    @property
    def heartbeat(self) -> str:
        """The topic of the server's messages to itself, which no device may write."""
        return f"{self.federation}/here/server"

    @property
    def from_devices(self) -> tuple[str, str]:
        return f"{self.federation}/here/+", f"{self.federation}/reply/+/+/+"

    def model(self, version: int, chunk: int | Literal["+"]) -> str:
        return f"{self.federation}/model/{version}/{chunk}"

    def job(self, device: int) -> str:
        return f"{self.federation}/job/{self.device(device)}"

    def here(self, device: int) -> str:
        return f"{self.federation}/here/{self.device(device)}"

    def reply(self, device: int, ticket: int, part: int | str) -> str:
        return f"{self.federation}/reply/{self.device(device)}/{ticket}/{part}"

    def device_number(self, name: str) -> int | None:
        return device_number(name, self.federation)


def number(text: str) -> int | None:
    """Parse a number in a topic; None unless it is in its canonical form."""
    return int(text) if re.fullmatch("0|[1-9][0-9]{0,15}", text) else None


class Text(BaseModel):
    """Base of the JSON messages."""

    model_config = ConfigDict(strict=True, frozen=True, ser_json_inf_nan="constants")

    def to_bytes(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


class Run(Text):
    """Announces the server's current run."""

    run: Name
    settings: Annotated[str, StringConstraints(max_length=TEXT_BYTES)]  # as in federation.toml, without paths
    since_s: float = 0.0  # Unix time at which it was first served; of two servers, the one with the later run stops
    own_model: bool = False  # the model is in a file on each device
    authority: str | None = None  # authorities of devices and their revocation lists (PEM), with secure aggregation


class Announcement(Text):
    """Announces arrays that follow in chunks."""

    run: Name
    version: Number
    bytes: Number = 0
    sha256: Digest = "0" * 64


class JobMessage(Announcement):
    """A job for one device. Its model follows in chunks."""

    ticket: Number
    kind: Kind
    key: Digest  # decrypts the model
    cancelled: bool | None = None  # True: answer at once, without computing
    merged: Number | None = None  # ticket of this device's last merged job, if devices keep state
    asked: Asked | None = None  # by secure aggregation

    def head(self, error: str | None = None) -> "Head":
        """Return the head of a reply to this job, with why it failed."""
        return Head(run=self.run, version=self.version, error=error)


def _short(signed: SignedKey) -> SignedKey:
    if len(signed.key + signed.signature + signed.certificate) > MOST_SIGNED:
        raise ValueError("is too long")
    return signed


class Here(Text):
    """Says that a device is present or gone."""

    here: bool
    session: Name = ""
    run: Name = ""  # the run it is ready for
    error: Words | None = None  # why it cannot take part in the run
    signed: Annotated[SignedKey, AfterValidator(_short)] | None = None  # with secure aggregation


class Head(Announcement):
    """A device's reply. The update, if any, follows in chunks."""

    metrics: Annotated[Mapping[str, float], Field(max_length=16)] = {}
    compute_s: float = 0.0
    error: Words | None = None
    about: Number | None = None  # the device whose key for masks this one refuses


AnyText = TypeVar("AnyText", bound=Text)


def read(kind: type[AnyText], data: bytes) -> AnyText | None:
    """Parse a JSON message; None if it is invalid."""
    if len(data) > 3 * TEXT_BYTES:
        return None
    try:
        return kind.model_validate_json(data)
    except ValueError:
        return None


class Size(TypedDict):
    """The fields of an announcement that describe the bytes to follow."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Parcel:
    """Arrays, serialised for transmission."""

    data: bytes
    key: str = ""  # in hexadecimal; empty if the data are not encrypted

    @classmethod
    def of(cls, arrays: Arrays) -> "Parcel":
        return cls(save({name: np.asarray(values, order="C") for name, values in arrays.items()}))

    def sealed(self) -> "Parcel":
        """Return the data encrypted with a new key."""
        key = os.urandom(32)
        return Parcel(AESGCM(key).encrypt(NONCE, self.data, None), key.hex())

    @cached_property
    def chunks(self) -> list[bytes]:
        return [self.data[start : start + CHUNK_BYTES] for start in range(0, len(self.data), CHUNK_BYTES)]

    @cached_property
    def announced(self) -> Size:
        return {"bytes": len(self.data), "sha256": hashlib.sha256(self.data).hexdigest()}


@dataclass
class Assembly:
    """Collects chunks up to the announced size. They may arrive twice and in any order."""

    size: int
    sha256: str
    parts: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def announced(cls, said: Announcement, most: int) -> "Assembly | None":
        """Return an empty assembly; None if nothing or more than ``most`` bytes are announced."""
        return cls(said.bytes, said.sha256) if 0 < said.bytes <= most else None

    def put(self, chunk: int, data: bytes) -> bool:
        """Store a chunk, and return whether it was announced."""
        if chunk < 0 or not 0 < len(data) == min(CHUNK_BYTES, self.size - chunk * CHUNK_BYTES):
            return False
        self.parts[chunk] = data
        return True

    @property
    def complete(self) -> bool:
        return sum(map(len, self.parts.values())) == self.size

    @property
    def data(self) -> bytes | None:
        """The received bytes; None if their checksum is not the announced one."""
        data = b"".join(self.parts[chunk] for chunk in sorted(self.parts))
        return data if hashlib.sha256(data).hexdigest() == self.sha256 else None

    def arrays(self, key: str = "") -> dict[str, np.ndarray]:
        """Return the received arrays, decrypted if a key is given.

        Raises:
            ValueError: The checksum is not the announced one, or the bytes are not safetensors, or the key is wrong.
        """
        data = self.data
        if data is None:
            raise ValueError("the checksum is another one than announced")
        try:
            return load(AESGCM(bytes.fromhex(key)).decrypt(NONCE, data, None) if key else data)
        except Exception as error:  # untrusted bytes may raise anything
            raise ValueError(f"not safetensors ({type(error).__name__})") from None
