"""Describe a figure as panels and curves. This module imports nothing that trains."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Values
from perfeds2.spec.resolve import resolve

Scale = Literal["quick", "paper"]
Tuned = Values  # learning settings by algorithm
SETTINGS_FILE = "reproduce.toml"


@dataclass(frozen=True)
class PanelLine:
    """One curve of a panel: an algorithm in a setting."""

    label: str
    algorithm: str
    settings: Values


@dataclass(frozen=True)
class Panel:
    """One data set in one setting, drawn as training loss and test accuracy over simulated time."""

    title: str
    task: str
    lines: tuple[PanelLine, ...]
    settings: Mapping[Scale, Values]  # shared by its curves

    def spec_of(
        self, line: PanelLine, seeds: tuple[int, ...], scale: Scale, changes: Values, tuned: Mapping[str, Tuned]
    ) -> Spec:
        """Return the spec of one curve. Tuned settings override the panel's, ``changes`` override both."""
        own: Values = {
            "run": {"algorithms": (line.algorithm,), "seeds": seeds},
            "learning": tuned.get(self.task, {}).get(line.algorithm, {}),
        }
        return resolve(merged(self.settings[scale], line.settings, own, changes))


@dataclass(frozen=True)
class Figure:
    """Panels that belong together."""

    name: str
    caption: str
    panels: tuple[Panel, ...]

    @property
    def lines(self) -> Iterator[tuple[Panel, PanelLine]]:
        """Return every line with its panel, in order."""
        return ((panel, line) for panel in self.panels for line in panel.lines)


def merged(*parts: Values) -> Values:
    """Merge nested settings; later ones override earlier ones."""
    result: Values = {}
    for part in parts:
        for section, values in part.items():
            result.setdefault(section, {}).update(values)
    return result


def tuned_file(task: str) -> str:
    return f"tuned-{task}.toml"
