"""Figures for papers are made, but not rendered: that takes half a second each, and few tests look at pixels.

Their files hold the texts and the lines of the figure instead, so other figures are other bytes.
"""

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

if TYPE_CHECKING:
    import pytest

BEGIN = {"pdf": b"%PDF", "png": b"\x89PNG"}
_savefig = Figure.savefig


def save_unrendered(figure: Figure, file: Any, **how: Any) -> None:
    """Save a figure. Those for papers are the ones with metadata."""
    if how.get("format") not in BEGIN or "metadata" not in how:
        _savefig(figure, file, **how)
        return
    texts = [each.get_text() for each in figure.findobj(Text)]  # type: ignore[attr-defined]  # found by its class
    lines = [each.get_xydata().tobytes() for each in figure.findobj(Line2D)]  # type: ignore[attr-defined]
    file.write(b"\n".join([BEGIN[how["format"]], *(text.encode() for text in texts), *lines]))


def render(patch: "pytest.MonkeyPatch") -> None:
    """Draw in earnest, in a test that looks at pixels."""
    patch.setattr(Figure, "savefig", _savefig)
