"""Are the package's own tables read as they were written?"""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfeds2.files import read_table


def test_a_table_is_read_to_the_last_digit(tmp_path):
    written = pd.DataFrame({"value": np.random.default_rng(0).lognormal(sigma=9, size=500)})
    written.to_csv(tmp_path / "table.csv", index=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / "table.csv"), written, check_exact=True)


@pytest.mark.parametrize(("version", "options"), [("2.2.2", {"float_precision": "round_trip"}), ("3.1.0", {})])
def test_only_a_pandas_that_would_round_is_asked_for_all_digits(version, options, tmp_path, monkeypatch):
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(pd, "__version__", version)
    monkeypatch.setattr(pd, "read_csv", lambda _, **given: asked.append(given))
    read_table(tmp_path / "table.csv")
    assert asked == [options]
