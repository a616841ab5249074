"""Generate the reference pages of the site from the code.

Commands come from the command line's own tree, settings and names from their tables, and functions and classes from
the source, with signatures, docstrings and the comments beside fields. No internal function of the package is called.
"""

import ast
import html
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "perfeds2"
FOLDERS = (
    "network",
    "allocation",
    "theory",
    "timeline",
    "privacy",
    "learning",
    "spec",
    "runs",
    "studies",
    "paper",
    "report",
    "deployment",
    "play",
)  # in pipeline order
NOT_SHOWN = {"commands", "cli"}  # covered by the command pages
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
WIDTH = 100  # longest signature on one line
COMMENT = re.compile(r"""(?:[^#"']|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')*(#.*)""")  # after strings, which may hold a #
SECTIONS_OF_DOCSTRINGS = ("Args:", "Returns:", "Raises:", "Attributes:", "Yields:", "Example:")


@dataclass
class Reference:
    """The pages by path in the site, and where each name is documented."""

    pages: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(
        default_factory=dict
    )  # page#anchor, by name: perfeds2.network.link.rate_bps, perfeds2 compare

    def nav(self) -> list[str]:
        """Return the lines of the site's navigation."""
        titles = {"commands": "Commands", "python": "Python"}
        lines: list[str] = []
        for page in self.pages:
            folder = page.split("/")[1]
            if folder in titles:
                lines.append(f"- {titles.pop(folder)}:")
            lines.append(f"    - {page}" if page.count("/") > 1 else f"- {page}")
        return lines


@cache
def reference() -> Reference:
    """Generate all reference pages."""
    made = Reference()
    made.pages["reference/index.md"] = "\n".join(_contents())
    made.pages["reference/settings.md"] = "\n".join(_settings())
    made.pages["reference/names.md"] = "\n".join(_names())
    made.pages["reference/methods.md"] = "\n".join(_methods())
    made.pages["reference/errata.md"] = errata_in_full()
    for path, command in commands():
        page = f"reference/commands/{path[0]}.md"
        made.pages[page] = made.pages.get(page, "") + "\n".join(_command(path, command)) + "\n"
        made.places[f"perfeds2 {' '.join(path)}"] = page + (f"#{'-'.join(path)}" if len(path) > 1 else "")
    made.pages["reference/python/index.md"] = "\n".join(_root())
    for folder in folders():
        page = f"reference/python/{folder}.md"
        made.pages[page] = "\n".join(_folder(folder, page, made.places))
    return made


# ---- errata


def errata_in_full() -> str:
    """Return all errata in full."""
    from perfeds2.paper.errata import ERRATA, PROSE

    opening = "# Errata in full\n\nEach case: what the paper prints, what is wrong, what perfeds2 does, and numbers that show it."
    return "\n\n".join([opening, *map(_erratum, ERRATA), PROSE["slips"], PROSE["left_open"]]) + "\n"


def _erratum(item: Any) -> str:
    from perfeds2.paper.errata import escaped, shown

    table = [
        "| measured | |",
        "|---|---:|",
        *(f"| {escaped(label)} | {shown(value)} |" for label, value in item.numbers),
    ]
    return "\n".join(
        [
            f"## {item.number}. {escaped(item.where)} {{ #erratum-{item.number} }}",
            "",
            f"**Printed.** {escaped(item.printed)}",
            "",
            f"**Wrong.** {escaped(item.wrong)}",
            "",
            f"**Ours.** {escaped(item.ours)}",
            "",
            *(table if item.numbers else ["This erratum concerns names only, so there is no number."]),
            "",
            f"* Command: `perfeds2 errata {item.number}`",
            "* Code: " + ", ".join(f"`{name}`" for name in item.code),
            "* Tests: " + ", ".join(f"`{name}`" for name in item.tests),
        ]
    )


# ---- HTML elements


def code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"


def inline(text: str) -> str:
    """Convert a sentence to HTML: text in backticks is code, everything else is literal."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"(`+)(.+?)\1", r"<code>\2</code>", escaped)


def prose(text: str | None) -> str:
    """Convert a docstring with paragraphs, lists and indented code to one HTML block, which Markdown leaves alone."""
    blocks: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        lines = block.splitlines()
        if block.startswith("    "):
            blocks.append(f"<pre><code>{html.escape(textwrap.dedent(block))}</code></pre>")
        elif lines and lines[0] in SECTIONS_OF_DOCSTRINGS:
            blocks.append(_docstring_section(lines[0], textwrap.dedent("\n".join(lines[1:]))))
        elif lines and lines[0].startswith(("- ", "* ")):
            items = re.split(r"(?:^|\n)[-*] ", block)[1:]
            blocks.append("<ul>" + "".join(f"<li>{inline(item)}</li>" for item in items) + "</ul>")
        elif block:
            blocks.append(f"<p>{inline(block)}</p>")
    inside = "\n".join(blocks)
    return f"<div>{inside}</div>" if blocks else ""


def _docstring_section(title: str, body: str) -> str:
    """Render a section of a Google-style docstring: a list of names, or a paragraph."""
    heading = f"<strong>{title.removesuffix(':')}</strong>"
    items = re.findall(r"^(\*{0,2}\w[\w.]*(?: \([^)]*\))?): (.*(?:\n +.*)*)", body, re.MULTILINE)
    if title == "Example:":
        return f"<p>{heading}</p><pre><code>{html.escape(body)}</code></pre>"
    if title == "Returns:" or not items:
        return f"<p>{heading}: {inline(body)}</p>"
    return f"<p>{heading}</p>" + listed([(code(name), inline(said)) for name, said in items])


def first_sentence(text: str | None) -> str:
    paragraph = inspect.cleandoc(text or "").split("\n\n")[0]
    return re.split(r"(?<=[^.][.?!])\s+(?=[A-Z`])", " ".join(paragraph.split()))[0]


def listed(terms: Sequence[tuple[str, str]]) -> str:
    """Return a definition list of HTML terms, which fits a phone better than a table."""
    return '<dl class="reference">' + "".join(f"<dt>{term}</dt><dd>{said}</dd>" for term, said in terms) + "</dl>"


# ---- the first page


def _contents() -> Iterator[str]:
    yield "# Reference\n\nEvery command, setting, name and function, generated from the code when the site is built.\n"
    yield "## Commands\n"
    top = [(path[0], command) for path, command in commands() if len(path) == 1]
    rows = [
        (f'<a href="commands/{name}.html">{code(f"perfeds2 {name}")}</a>', inline(first_sentence(command.help)))
        for name, command in top
    ]
    yield listed(rows)
    yield "\n## More\n"
    yield "- [Settings](settings.md): every setting, as a flag, as a key of a spec and as a keyword in Python."
    yield "- [Names](names.md): every policy, schedule, radio, method, merge, task and model that a setting accepts."
    yield "- [Methods](methods.md): every method's rule, settings, and differences from its paper and its authors' code."
    yield "- [Errata in full](errata.md): each error of the paper, what we do instead, and numbers that show it."
    yield "- [Python](python/index.md): the public names of `perfeds2`, and every module."


# ---- commands


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with its words, groups before their members."""
    from typer.main import get_command

    from perfeds2.cli import app

    def walk(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        inner: Mapping[str, Any] = getattr(command, "commands", {})
        if path:
            yield path, command
        for name, each in inner.items():
            if not each.hidden:
                yield from walk((*path, name), each)

    return walk((), get_command(app))


def _command(path: tuple[str, ...], command: Any) -> Iterator[str]:
    from perfeds2.spec.fields import settings

    context = command.context_class(command, info_name=f"perfeds2 {' '.join(path)}")
    level = "#" * len(path)
    yield f"\n{level} perfeds2 {' '.join(path)} {{ #{'-'.join(path)} }}\n"
    yield prose(command.help)
    if getattr(command, "commands", None):
        return
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece)
    yield f'\n<pre class="usage"><code>{html.escape(f"{context.info_name} {usage}")}</code></pre>\n'
    known = {each.keyword: each for each in settings()}
    own, shared = [], []
    for parameter in command.params:
        (shared if parameter.name in known or parameter.name == "seed" else own).append(parameter)
    records = [record for each in own if (record := each.get_help_record(context)) is not None]
    yield listed([(code(" ".join(name.split())), inline(said.replace("\\[", "["))) for name, said in records])
    if not shared:
        return
    defaults: Mapping[str, Sequence[Any]] = getattr(command, "own_defaults", {})
    up = "../" if len(path) else ""
    panels: dict[str, list[str]] = {}
    for each in shared:
        setting = known.get(each.name or "")
        flag, anchor = (setting.flag, setting.keyword) if setting else (each.opts[0], "seeds")
        panels.setdefault(setting.panel if setting else "Run", []).append(
            f'<a href="{up}settings.html#{anchor}">{code(flag)}</a>'
        )
    yield f'<p>It also accepts these <a href="{up}settings.html">settings</a>, as flags, with <code>--set</code> or in a spec:</p>'
    yield listed([(inline(panel), " ".join(flags)) for panel, flags in panels.items()])
    if defaults:
        told = ", ".join(
            f"{code(known[name].flag)} {inline(','.join(map(str, values)))}"
            for name, values in defaults.items()
            if name in known
        )
        yield f"<p>Defaults of this command: {told}.</p>" if told else ""


# ---- settings


def _settings() -> Iterator[str]:
    from perfeds2.spec.fields import SECTIONS, settings

    yield "# Settings\n"
    yield "You can set every setting in five ways: `--quorum 5` on the command line, `quorum = 5` below `[protocol]` in a spec file, "
    yield "`--set protocol.quorum=5`, `--grid quorum=1,5,20` in a sweep, and `compare(quorum=5)` in Python.\n"
    for section, model in SECTIONS.items():
        yield f"## {model.model_config.get('title')} {{ #{section} }}\n\n{prose(model.__doc__)}\n"
        rows = []
        for each in settings():
            if each.section != section:
                continue
            said, _, default = each.help().rpartition(" (default: ")
            said, default = (said, default.removesuffix(")")) if said else (each.help(), "")
            names = f' <a href="names.html#{_anchor(each.kind.what)}">Names</a>.' if each.kind else ""
            term = f'<span id="{each.keyword}">{code(f"{each.flag} {each.look}".strip())}</span> <small>{section}.{each.key}</small>'
            rows.append(
                (term, inline(said) + names + (f"<br><small>Default: {inline(default)}</small>" if default else ""))
            )
        yield listed(rows) + "\n"


# ---- names


def _names() -> Iterator[str]:
    from perfeds2.spec.fields import settings

    yield "# Names\n"
    yield "The names that settings accept. Wherever a name is accepted, your own is too: `FILE.py:NAME`, `package.module:NAME`, or in Python"
    yield "the object itself ([extending](../how-to/extending.md)). `:K` and similar suffixes stand for a number.\n"
    for each in settings():
        if each.kind is None:
            continue
        yield f"## {each.kind.what.capitalize()} {{ #{_anchor(each.kind.what)} }}\n"
        yield f'<p>For <a href="settings.html#{each.keyword}">{code(each.flag)}</a>.</p>\n'
        table, entries = each.kind.table(), entries_of(each.kind.table())
        yield (
            listed([(code(name), _said_of(value, *entries.get(name, ("", "")))) for name, value in table.items()])
            + "\n"
        )


# ---- methods


def _methods() -> Iterator[str]:
    from dataclasses import fields

    from perfeds2.spec.fields import own_settings
    from perfeds2.spec.methods import listed_methods

    yield "# Methods\n"
    yield "Each method's rule, its settings, and how it differs from its paper and its authors' code; `perfeds2 methods NAME` prints the same."
    yield "[Methods](../explanation/methods.md) says how to choose, set and compare them.\n"
    yield "In the entries, w is the model, w_i the model that UE i ended with, Δ_i = w_handed − w_i its move, τ_i the staleness in"
    yield "rounds, A the quorum, n the number of UEs, K the local steps, β their size, and s(τ) the discount for stale uploads.\n"
    for method in listed_methods():
        yield f"## {method.name} {{ #{method.name} }}\n"
        yield f"<p><small>{inline(method.make.paper)}. Rounds: {method.rounds}.</small></p>\n"
        yield prose(method.make.__doc__) + "\n"
        make: Any = method.make
        helps = {each.name: each.metadata.get("help", "") for each in fields(make)}
        rows = [
            (
                code(f"{method.name}.{key}"),
                f"{inline(helps[key])}<br><small>Default: {inline(str(each.default))}</small>",
            )
            for key, each in own_settings(method.make).items()
        ]
        yield (listed(rows) if rows else "") + "\n"


def _anchor(what: str) -> str:
    return what.replace(" ", "-")


def _said_of(value: Any, expression: str, comment: str) -> str:
    """Describe in a sentence what a name stands for, and show how it is made."""
    from perfeds2.spec.methods import ListedMethod

    made = value
    if isinstance(value, ListedMethod):
        return f"{inline(first_sentence(inspect.getdoc(value.make)))} In {value.rounds} rounds."
    data = getattr(value, "data", None)
    if callable(data):  # a task is described by its module
        made = inspect.getmodule(data)
    elif isinstance(value, partial):
        made = value.func
    said = first_sentence(inspect.getdoc(made)) if made is not None else ""
    if comment[:1].isupper() and len(comment.split()) > 3:  # a sentence about this name
        said = comment + "."
    if not said:  # without a docstring, describe what the function returns
        returned = inspect.signature(made).return_annotation if callable(made) else None
        said = first_sentence(inspect.getdoc(returned)) if isinstance(returned, type) else comment.capitalize() + "."
    is_plain = re.fullmatch(r"\w*", expression) is not None
    return inline(said) + ("" if is_plain else f"<br><small>{code(expression)}</small>")


def entries_of(table: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the source and comment of each entry in a table; empty if the table is computed."""
    return next((found for found in _tables() if set(found) == set(table)), {})


@cache
def _tables() -> list[dict[str, tuple[str, str]]]:
    """Return every literal table in the package's source."""
    found = []
    for path in modules():
        comments = comments_of(path)
        for node in tree_of(path).body:
            value = getattr(node, "value", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Dict):
                pairs = zip(value.keys, value.values, strict=True)
                written = [(key.value, each) for key, each in pairs if isinstance(key, ast.Constant)]
                found.append({str(key): (ast.unparse(each), comments.get(each.lineno, "")) for key, each in written})
    return found


# ---- Python


def folders() -> list[str]:
    """Return the package's folders, in pipeline order."""
    there = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - NOT_SHOWN
    return [name for name in FOLDERS if name in there] + sorted(there - {*FOLDERS})


def _root() -> Iterator[str]:
    import perfeds2

    yield "# Python\n\nThe public names: `from perfeds2 import …`. Each is loaded when it is first used. Three packages have more, for what"
    yield "you add yourself: `perfeds2.runs` (studies), `perfeds2.report` (figures) and `perfeds2.deployment` (models and transports); their names"
    yield "are in `__init__.pyi`. Everything else is internal and may change in any version.\n"
    rows = []
    for name, module in perfeds2._NAMES.items():
        home = module.removeprefix("perfeds2.")
        dotted = f"perfeds2.{home}.{name}"
        if "." not in home:  # a package, or a name of a module outside the folders
            obj = getattr(perfeds2, name)
            shown = code(name) if home not in folders() else f'<a href="{home}.html#perfeds2.{home}">{code(name)}</a>'
            rows.append((shown, inline(first_sentence(inspect.getdoc(obj)))))
            continue
        node = next((found for found in public(module_path(home)) if found[0] == name), None)
        said = (
            first_sentence(ast.get_docstring(node[1])) if node and isinstance(node[1], FUNCTION | ast.ClassDef) else ""
        )
        rows.append(
            (f'<a href="{home.split(".")[0]}.html#{dotted}">{code(name)}</a>', inline(said or _recipe_said(home, name)))
        )
    yield listed(rows)
    yield "\n## The folders\n\nIn the order in which things happen. Imports point from later folders to earlier ones.\n"
    yield listed(
        [
            (f'<a href="{name}.html">{code(f"perfeds2.{name}")}</a>', inline(_doc(PACKAGE / name / "__init__.py")))
            for name in folders()
        ]
    )


def _recipe_said(home: str, name: str) -> str:
    """Describe a task, which is an object, by the docstring of its module."""
    own = PACKAGE / home.replace(".", "/") / f"{name}.py"
    return first_sentence(_doc(own)) if own.exists() else ""


def _doc(path: Path) -> str:
    return ast.get_docstring(tree_of(path)) or ""


def _folder(folder: str, page: str, places: dict[str, str]) -> Iterator[str]:
    yield f"# perfeds2.{folder} {{ #perfeds2.{folder} }}\n\n{prose(_doc(PACKAGE / folder / '__init__.py'))}\n"
    for path in modules(PACKAGE / folder):
        dotted = dotted_name(path)
        if path.name != "__init__.py":
            places[dotted] = f"{page}#{dotted}"
            yield f"## {dotted.removeprefix(f'perfeds2.{folder}.')} {{ #{dotted} }}\n\n{prose(_doc(path))}\n"
        comments, names = comments_of(path), list(public(path))
        rows = [_constant(f"{dotted}.{name}", name, node, comments) for name, node in names if is_constant(node)]
        yield listed(rows) + "\n" if rows else ""
        places.update({f"{dotted}.{name}": f"{page}#{dotted}.{name}" for name, node in names if is_constant(node)})
        for name, node in names:
            for anchor, text in _shown(f"{dotted}.{name}", name, node, comments):
                places[anchor] = f"{page}#{anchor}"
                yield text


def is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign | ast.AnnAssign)


def _constant(dotted: str, name: str, node: Any, comments: Mapping[int, str]) -> tuple[str, str]:
    """Return a constant, table or type alias, and the comment beside it."""
    said = comments.get(node.lineno) or comments.get(node.end_lineno or 0, "")
    return f'<span id="{dotted}">{code(f"{name} = {_short(node.value)}")}</span>', inline(said)


def _shown(dotted: str, name: str, node: ast.stmt, comments: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """Yield (anchor, Markdown) of a function, or of a class with its fields and methods."""
    if isinstance(node, ast.ClassDef):
        fields = [
            (each.target.id, each)
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        rows = [
            (
                f'<span id="{dotted}.{key}">{code(f"{key}: {ast.unparse(each.annotation)}" + (f" = {_short(each.value)}" if each.value else ""))}</span>',
                inline(comments.get(each.end_lineno or 0, "")),
            )
            for key, each in fields
            if not key.startswith("_")
        ]
        yield (
            dotted,
            f"### {name} {{ #{dotted} }}\n\n{_source(_class_line(node))}\n{prose(ast.get_docstring(node))}\n{listed(rows) if rows else ''}\n",
        )
        yield from ((f"{dotted}.{key}", "") for key, _ in fields if not key.startswith("_"))
        for each in node.body:
            if isinstance(each, FUNCTION) and not each.name.startswith("_"):
                yield (
                    f"{dotted}.{each.name}",
                    f"#### {name}.{each.name} {{ #{dotted}.{each.name} }}\n\n{_source(_signature(each))}\n{prose(ast.get_docstring(each))}\n",
                )
    elif isinstance(node, FUNCTION):
        yield dotted, f"### {name} {{ #{dotted} }}\n\n{_source(_signature(node))}\n{prose(ast.get_docstring(node))}\n"


def _short(value: ast.expr | None, most: int = 90) -> str:
    text = "" if value is None else ast.unparse(value)
    return text if len(text) <= most else f"{text[:most]} …"


def _source(text: str) -> str:
    """Return a Python block, which the site highlights."""
    return f"```python\n{text}\n```\n"


def _class_line(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(each) for each in [*node.bases])
    marks = "".join(f"@{ast.unparse(each)}\n" for each in node.decorator_list)
    made = next((each for each in node.body if isinstance(each, FUNCTION) and each.name == "__init__"), None)
    called = f"\n\n{_signature(made)}" if made else ""
    return f"{marks}class {node.name}{f'({bases})' if bases else ''}{called}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a signature as written, with one parameter per line if it is long."""
    marks = "".join(f"@{ast.unparse(each)}\n" for each in node.decorator_list if ast.unparse(each) != "override")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    define = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    whole = f"{define} {node.name}({ast.unparse(node.args)}){returns}"
    if len(whole) <= WIDTH:
        return marks + whole
    return (
        f"{marks}{define} {node.name}(\n" + "".join(f"    {each},\n" for each in _parameters(node.args)) + f"){returns}"
    )


def _parameters(arguments: ast.arguments) -> list[str]:
    """Return each parameter with its type and default."""
    given = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(given) - len(arguments.defaults)) + [*arguments.defaults]
    written = [_parameter(*pair) for pair in zip(given, defaults, strict=True)]
    if arguments.posonlyargs:
        written.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        written.append(f"*{_parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        written.append("*")
    written += [_parameter(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return written + ([f"**{_parameter(arguments.kwarg, None)}"] if arguments.kwarg else [])


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    equals = " = " if kind else "="
    return argument.arg + kind + (f"{equals}{ast.unparse(default)}" if default is not None else "")


# ---- the source


def modules(below: Path = PACKAGE) -> list[Path]:
    return sorted(path for path in below.rglob("*.py") if not path.stem.startswith("_") or path.name == "__init__.py")


def module_path(dotted: str) -> Path:
    path = PACKAGE / dotted.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def public(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the public names of a module in source order."""
    for node in tree_of(path).body:
        if isinstance(node, FUNCTION | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
        else:
            names = []
        yield from ((name, node) for name in names if not name.startswith("_"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def comments_of(path: Path) -> dict[int, str]:
    """Return the comments by line, without those for tools."""
    said = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = COMMENT.match(line)
        if found:
            said[number] = found[1].lstrip("# ")
    return {line: text for line, text in said.items() if not re.match(r"(fmt|type|noqa|pyright|pragma)\b", text)}
