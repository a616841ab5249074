"""What do the bytes of MQTT 3.1.1 mean? Nothing a stranger sends may take memory or do more than end its own connection."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

MOST_LEVELS = 200  # of a topic


class MalformedError(Exception):
    """These bytes are not MQTT 3.1.1 as we speak it; in words."""


class Type(IntEnum):
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


@dataclass(frozen=True)
class Message:
    """What one says to many."""

    topic: str
    payload: bytes
    qos: int
    retain: bool

    def packet(self, qos: int, retain: bool, number: int = 0, again: bool = False) -> bytes:
        topic = self.topic.encode()
        head = len(topic).to_bytes(2, "big") + topic + (number.to_bytes(2, "big") if qos else b"")
        return packet(Type.PUBLISH, head + self.payload, 8 * again | qos << 1 | retain)


@dataclass(frozen=True)
class Connect:
    """How somebody introduces themselves; who they are, their certificate has said already."""

    level: int  # 4 is MQTT 3.1.1
    clean: bool
    keep_alive_s: int
    will: Message | None


class Packets:
    """Whole packets out of a stream. The length is looked at before anything is kept."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._kept = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, "Fields"]]:
        """The first byte and the fields of each packet that is complete by now."""
        self._kept += data
        while (head := _length(self._kept)) is not None:
            start, length = head
            if start + length > self.most_bytes:
                raise MalformedError(f"a packet of {start + length} bytes, of which {self.most_bytes} are allowed")
            if len(self._kept) < start + length:
                return
            first, body = self._kept[0], bytes(self._kept[start : start + length])
            del self._kept[: start + length]
            yield first, Fields(body)


def _length(kept: bytearray) -> tuple[int, int] | None:
    """Where the fields begin and how long they are; None as long as nobody can tell."""
    length = 0
    for place in range(1, min(len(kept), 5)):
        length |= (kept[place] & 0x7F) << 7 * (place - 1)
        if not kept[place] & 0x80:
            return place + 1, length
    if len(kept) >= 5:
        raise MalformedError("a length of more than four bytes")
    return None


class Fields:
    """The fields of a packet, from the front."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._place = 0

    def take(self, count: int) -> bytes:
        if count > len(self._body) - self._place:
            raise MalformedError("a packet that ends too early")
        self._place += count
        return self._body[self._place - count : self._place]

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def binary(self) -> bytes:
        return self.take(self.number())

    def text(self) -> str:
        try:
            text = self.binary().decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedError("a text that is not UTF-8") from None
        if "\0" in text:
            raise MalformedError("a text with a zero in it")
        return text

    def rest(self) -> bytes:
        return self.take(len(self._body) - self._place)

    def more(self) -> bool:
        return self._place < len(self._body)

    def end(self) -> None:
        if self.more():
            raise MalformedError("a packet with something behind its end")


def packet(kind: Type, body: bytes = b"", flags: int = 0) -> bytes:
    length, head = len(body), bytearray([kind << 4 | flags])
    while length > 127:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + body


def read_connect(fields: Fields) -> Connect:
    if fields.text() != "MQTT":
        raise MalformedError("a greeting that is not MQTT's")
    level, flags, keep_alive_s = fields.byte(), fields.byte(), fields.number()
    if level != 4:
        return Connect(level, True, keep_alive_s, None)
    if flags & 1:
        raise MalformedError("a reserved bit that is set")
    fields.text()  # what it calls itself: its certificate says that
    will = None
    if flags & 4:
        will = Message(check_topic(fields.text()), fields.binary(), flags >> 3 & 3, bool(flags & 0x20))
        if will.qos > 1:
            raise MalformedError("a will of a quality of service above 1")
    elif flags & 0x38:
        raise MalformedError("flags of a will and no will")
    for flag in (0x80, 0x40):  # a user's name and password: not asked for
        if flags & flag:
            fields.binary()
    fields.end()
    return Connect(level, bool(flags & 2), keep_alive_s, will)


def read_publish(flags: int, fields: Fields) -> tuple[Message, int]:
    """The message and its number; 0 where it wants no answer."""
    qos = flags >> 1 & 3
    if qos > 1:
        raise MalformedError(f"a quality of service of {qos}, of which 1 is the highest here")
    topic = check_topic(fields.text())
    number = fields.number() if qos else 0
    if qos and not number:
        raise MalformedError("a message number of 0")
    return Message(topic, fields.rest(), qos, bool(flags & 1)), number


def read_filters(flags: int, fields: Fields, wanted: bool) -> tuple[int, list[tuple[str, int]]]:
    """The number of a (un)subscription, and its filters with the quality of service each is ``wanted`` with."""
    if flags != 2:
        raise MalformedError("reserved bits that are not as they should be")
    number, filters = fields.number(), list[tuple[str, int]]()
    while fields.more():
        filters.append((check_filter(fields.text()), fields.byte() if wanted else 0))
        if filters[-1][1] > 2:
            raise MalformedError("a quality of service above 2")
    if not number or not filters:
        raise MalformedError("a subscription without a number or a topic")
    return number, filters


def check_topic(topic: str) -> str:
    if not topic or "+" in topic or "#" in topic or topic.count("/") >= MOST_LEVELS:
        raise MalformedError("a topic that cannot be one")
    return topic


def check_filter(filter_: str) -> str:
    levels = filter_.split("/")
    wild = any(("+" in level or "#" in level) and len(level) > 1 for level in levels) or "#" in levels[:-1]
    if not filter_ or wild or len(levels) > MOST_LEVELS:
        raise MalformedError("a topic filter that cannot be one")
    return filter_


def matches(filter_: str, topic: str) -> bool:
    """Whether a topic is one of those a filter means: + is any one level, # all that follow."""
    if filter_ == topic:
        return True
    wanted, levels = filter_.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)
