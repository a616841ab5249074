"""The messages between a server and its devices: small JSON texts, which are validated when they are read.

Arrays follow a message that announces their size and checksum. How they and the messages travel is the transport's
business.
"""

from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from perfeds2.deployment.transport import Asked, Kind, SignedKey

MOST_SIGNED = 1200  # characters of a key for masks with its certificate: a list of 100 fits into a message
TEXT_BYTES = 64 * 1024  # longest settings of a run

Name = Annotated[str, StringConstraints(pattern=r"^[0-9a-zA-Z-]{0,64}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[int, Field(ge=0, lt=2**53)]
Words = Annotated[str, StringConstraints(max_length=500)]


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
    files: Annotated[Mapping[Name, Digest], Field(max_length=4)] | None = None  # sha256 of other files, by their flag
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
