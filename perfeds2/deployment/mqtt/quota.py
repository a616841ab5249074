"""Limit what a client may send. Devices stay far below the limit: they send a few messages per job."""

from dataclasses import dataclass

WINDOW_S = 60.0


@dataclass
class Quota:
    """What a client may send per minute, and what it has sent in this one."""

    messages: int = 60_000
    bytes: int = 4 * 2**30
    _ends_s: float = 0.0
    _messages: int = 0
    _bytes: int = 0

    def exceeded(self, size: int, now_s: float) -> bool:
        """Count a message, and return whether it is too much."""
        if now_s >= self._ends_s:
            self._ends_s, self._messages, self._bytes = now_s + WINDOW_S, 0, 0
        self._messages += 1
        self._bytes += size
        return self._messages > self.messages or self._bytes > self.bytes

    def __str__(self) -> str:
        return f"more than {self.messages:,} messages or {self.bytes:,} bytes in a minute"
