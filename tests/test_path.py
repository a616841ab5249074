"""Does a comparison take the path through the code that the documentation describes, and make what it needs once?"""

import re
import sys
import threading
from pathlib import Path

from command_line import perfeds2
from in_numpy import train_in_numpy

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
TINY = "--task synthetic --ues 4 --rounds 2 --batch 4 --seeds 1 --algorithms PerFedS2,FedAvg-SYN --quiet"


def test_a_comparison_takes_the_path_that_the_design_describes(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    (described,) = re.findall(r"`cli\.main` →.*?`\.", PAGE, re.DOTALL)
    path = re.findall(r"`([\w.]+)`", described)
    first: dict[str, None] = {}
    made: dict[str, int] = {}

    def note(frame, event, _):
        if event == "call" and "/perfeds2/" in frame.f_code.co_filename:
            file = Path(frame.f_code.co_filename).stem
            for name in (f"{file}.{frame.f_code.co_name}", frame.f_code.co_qualname):
                first.setdefault(name)
            if (name := frame.f_code.co_qualname) in ("Stage.of", "make_algorithms"):
                made[name] = made.get(name, 0) + 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        status, said = perfeds2("compare", *TINY.split(), "--jobs", "1", "--out", tmp_path / "out")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert status == 0, said
    assert made == {"Stage.of": 1, "make_algorithms": 1 + 2}  # for the check, and two that the estimate plays
    assert [name for name in path if name not in first] == []
    called = list(first)
    assert sorted(path, key=called.index) == path
