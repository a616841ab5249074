"""What happened, for people and for programs? An event is a sentence; programs want its parts by name."""

import json
import re
from collections.abc import Mapping
from typing import Any

EVENTS = "events.jsonl"
NAMED = {"ue": re.compile(r"\b(?:UE |device-)(\d{1,9})\b"), "ticket": re.compile(r"\bticket (\d{1,18})\b")}

OF_WHAT = re.compile(r"^(round \d+|device-\d+) ")
WORDS = re.compile(r"[A-Za-z ]+")


def in_one_line(event: str) -> str:
    """What others sent may be quoted in an event: it must not look like another one, nor steer a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in event)


def as_json(at: str, event: str, facts: Mapping[str, int]) -> str:
    """``refused: UE 3 ticket 7 has no update`` as an object: time, kind, ue, ticket, what else is known, the sentence.

    Of a closed round, ues and tickets are lists. Else the first UE and ticket are ours; later ones may be quoted.
    """
    kind = kind_of(event)
    found = {name: list(map(int, form.findall(event))) for name, form in NAMED.items()}
    named = (
        {f"{name}s": numbers for name, numbers in found.items()}
        if kind == "closed"
        else {name: numbers[0] for name, numbers in found.items() if numbers}
    )
    told: dict[str, Any] = {"time": at, "kind": kind, **named, **facts, "event": event}
    return json.dumps(told, ensure_ascii=False)


def kind_of(event: str) -> str:
    """What stands before the colon, if that is words; else the first word. Whose it is, is not part of it."""
    event = OF_WHAT.sub("", event)
    words, colon, _ = event.partition(":")
    return words if colon and WORDS.fullmatch(words) else event.split(" ")[0].rstrip(":")
