"""What is on the broker: messages (``messages.py``), and arrays as chunks of safetensors bytes. Never code.

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
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypedDict

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from safetensors.numpy import load, save

from perfeds2.deployment.credentials import FEDERATION, device_number, federated_name
from perfeds2.deployment.messages import Announcement
from perfeds2.deployment.transport import Arrays

HEAD = "head"
CHUNK_BYTES = 240 * 1024  # with its topic, below the broker's limit of 256 KiB
NONCE = bytes(12)  # of AES-256-GCM; zero, because every key encrypts one model only
SLACK_BYTES = 16 * 1024  # by how much an update may exceed its model: other writers name and pad differently


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
            raise ValueError("the checksum differs from the announced one")
        try:
            return load(AESGCM(bytes.fromhex(key)).decrypt(NONCE, data, None) if key else data)
        except Exception as error:  # untrusted bytes may raise anything
            raise ValueError(f"not safetensors ({type(error).__name__})") from None
