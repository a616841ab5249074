"""What happened, for people and for programs? An event is a sentence; programs want its parts by name."""

import json
import re
from collections.abc import Mapping
from typing import Any

EVENTS = "events.jsonl"
NAMED = {"ue": re.compile(r"\b(?:UE |device-)(\d{1,9})\b"), "ticket": re.compile(r"\bticket (\d{1,18})\b")}


def in_one_line(event: str) -> str:
    """What others sent may be quoted in an event: it must not look like another one, nor steer a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in event)


def as_json(at: str, event: str, facts: Mapping[str, int]) -> str:
    """``refused: UE 3 ticket 7 has no update`` as an object: time, kind, what else is known, ue and ticket, the sentence.

    The kind is what stands before a colon, else the first word. The first UE and ticket are ours; later ones may be quoted.
    """
    kind = event.split(":")[0] if ":" in event else event.split(" ")[0]
    found = {name: int(match[1]) for name, form in NAMED.items() if (match := form.search(event))}
    told: dict[str, Any] = {"time": at, "kind": kind, **found, **facts, "event": event}
    return json.dumps(told, ensure_ascii=False)
