"""Show the fields of a spec as its users see them: flags, keywords and help texts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from perfeds2.spec.names import Kind, Value
from perfeds2.spec.values import TASK, Section


@dataclass(frozen=True)
class Setting:
    """A field as its users see it."""

    section: str
    key: str
    name: str  # the flag without leading dashes: labels-per-ue
    panel: str
    look: str  # empty for a switch
    description: str
    default: str
    kind: Kind | None
    words: tuple[str, ...]  # allowed words, if they are a fixed set

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def keyword(self) -> str:
        return self.name.replace("-", "_")

    def help(self, own_default: str | None = None, most: int | None = None) -> str:
        """Return the help text with the names of its kind and the default.

        Args:
            own_default: The default of a command that differs from the field's.
            most: Number of names to list; None lists all.
        """
        text = self.description
        if self.kind is not None and (names := list(self.kind.table())):
            listed = names if most is None or len(names) <= most else [*names[:most], f"{len(names) - most} more"]
            text += f" Names: {', '.join(listed)}."
        tasks_by_value: dict[str, list[str]] = {}
        for name, task in TASK.table().items():
            own = getattr(task, "defaults", {}).get(self.section, {})
            if self.key in own:
                tasks_by_value.setdefault(value_text(own[self.key]), []).append(name)
        others = "; ".join(f"{', '.join(tasks)}: {value}" for value, tasks in tasks_by_value.items())
        default = own_default or (f"{self.default}; {others}" if others else self.default)
        return f"{text} (default: {default})" if default else text


def settings_of(sections: Mapping[str, type[Section]]) -> Iterator[Setting]:
    for section, model in sections.items():
        for key, info in model.model_fields.items():
            extra: Value = info.json_schema_extra
            default = info.default
            plain = ",".join(f"{v:g}" for v in default) if isinstance(default, tuple) else default
            shown = extra["shown"] or ("" if plain is None or info.default_factory else value_text(plain))
            name = extra["flag"] or key.replace("_", "-")
            panel = str(model.model_config.get("title"))
            parts = [*_parts(info.annotation), *info.metadata]
            kind = next((part for part in parts if isinstance(part, Kind)), None)
            words = tuple(part for part in parts if isinstance(part, str))
            yield Setting(section, key, name, panel, extra["look"], str(info.description), shown, kind, words)


def value_text(value: object) -> str:
    """Format the value of a setting."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parts(annotation: object) -> Iterator[object]:
    """Yield a type and its parts recursively, down to the words of literals and the kinds of names."""
    yield annotation
    for inner in get_args(annotation):
        yield from _parts(inner)
