"""Claims about the figures for a paper."""

from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.image import imread

from perfeds2.report.run import write_paper_figures

NAMES = [
    "test-accuracy-personal",
    "test-accuracy",
    "train-loss-personal",
    "train-loss",
    "activity",
    "staleness",
    "shares",
]


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_every_figure_comes_as_a_small_pdf_and_png_one_column_wide(compared: Path, tmp_path: Path):
    written = write_paper_figures(compared, tmp_path / "figures")
    assert [path.name for path in written] == [
        *(f"{name}.{kind}" for name in NAMES for kind in ("pdf", "png")),
        "table.tex",
    ]
    for path in written[:-1]:
        assert 0 < path.stat().st_size < 300_000
        if path.suffix == ".png":
            pixels = imread(path)
            assert pixels.shape[1] == 1050  # 3.5 in at 300 dots
            assert (pixels[..., :3] < 0.99).any(axis=2).mean() > 0.02  # something is drawn


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_the_same_folder_gives_the_same_bytes_and_leaves_matplotlibs_settings_alone(make_run, tmp_path: Path):
    before = dict(mpl.rcParams)
    folder = make_run(algorithms=[("$x^{$ _\\", "PerFed", "S2")], seeds=[0], command="simulate")
    first, second = (write_paper_figures(folder, tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert b"/FontType 42" in first[0].read_bytes() or b"/Type0" in first[0].read_bytes()
    assert b"/Type3" not in first[0].read_bytes()
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
def test_a_simulation_has_the_figures_of_its_timeline(make_run):
    folder = make_run(command="simulate", seeds=[0], algorithms=[("PerFedS2", "PerFed", "S2")])
    written = write_paper_figures(str(folder))
    assert {path.stem for path in written} == {"activity", "staleness", "shares", "table"}
    assert {path.parent for path in written} == {folder / "figures"}
