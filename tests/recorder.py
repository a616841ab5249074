"""A follower that remembers what it is shown."""

from pathlib import Path
from typing import Any

import pandas as pd

from perfeds2.files import read_table
from perfeds2.runs.progress import Board


class Recorder:
    """Remembers what it is shown."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.board = Board()
        self.ends = 0

    def look(self, board, news):
        self.board = board
        for training, number, row in news:
            known = {"label": training.label, "algorithm": training.algorithm, "seed": training.seed, "n": number}
            self.rows.append(known | row)

    def end(self, board):
        self.board = board
        self.ends += 1

    def table(self) -> pd.DataFrame:
        return pd.DataFrame(self.rows).sort_values(["algorithm", "seed", "n"], ignore_index=True)


def same_as_written(recorder: Recorder, folder: Path) -> None:
    """What was shown is metrics.csv, to the last digit, and nothing twice."""
    written = read_table(folder / "metrics.csv").sort_values(["algorithm", "seed", "time_s"], ignore_index=True)
    shown = recorder.table()
    assert not shown.duplicated(["algorithm", "seed", "n"]).any()
    pd.testing.assert_frame_equal(pd.DataFrame(shown[list(written)]), written, check_dtype=False, check_exact=True)
