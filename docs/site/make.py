"""Build the site from the documents: ``make site``, or python docs/site/make.py [WHERE].

All pages are first written to WHERE/pages as plain Markdown. The site builder then makes WHERE/site from them in
strict mode, in which a broken link or anchor is an error. While writing WHERE/pages:

- the reference is generated from the code (``reference.py``);
- a folder in the navigation (``site.yml``) is expanded to its pages;
- a repository file that a page links to becomes a page, so that no link leaves the site; a notebook's page also links to
  Colab and Binder if ``$GITHUB_REPOSITORY`` is set, as in GitHub Actions;
- drawings (``pictures.py``) and charts (``charts.py``) are inlined, so that they follow the page's light or dark mode;
- equations in GitHub's syntax become MathML, which browsers render without a script;
- a dotted name or a command in code links to its reference.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from latex2mathml.converter import convert
from pictures import BY_ITSELF
from reference import ROOT, reference

DOCS = ROOT / "docs"
SETTINGS = DOCS / "site" / "site.yml"
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md")  # other repository files are included if a page links to them
HIDE = {
    "index.md": "[navigation, toc]",
    "explanation/paper-to-code.md": "[navigation]",
    "explanation/glossary.md": "[navigation]",
}  # pages without sidebars
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "sh"}

FENCED = re.compile(r"(^ *(`{3,}|~{3,})[^\n]*\n.*?^ *\2 *$)", re.DOTALL | re.MULTILINE)
EQUATION = re.compile(r" *```math\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
IN_A_LINE = re.compile(r"(?:<br>)?\$`(.+?)`\$")
LONG_NAME = re.compile(r"`([^`\s]{20,})`")
FLAG = re.compile(r"(?<![`\[])`(--[a-z0-9-]{1,20}(?: [A-Z]{1,6})?)`(?!`)")
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)")
PICTURE = re.compile(r"!\[[^\]]*\]\(([\w./-]*images/(?:concepts|charts)/[\w-]+\.svg)\)")
NAME = re.compile(r"(?<!\[)`(perfeds2[. ][\w. -]+)`")


def main(where: str = "build") -> int:
    """Build the site. Return the builder's exit status."""
    folder = Path(where).resolve()
    shutil.rmtree(folder / "pages", ignore_errors=True)
    write_pages(folder / "pages")
    (folder / "site.yml").write_text(settings(folder), encoding="utf-8")
    status, said = build(folder)
    print(said, file=sys.stderr if status else sys.stdout)
    return status


def build(folder: Path) -> tuple[int, str]:
    """Build FOLDER/site from FOLDER/pages. Return the exit status, and the path of the first page or the errors."""
    options = ["--strict", "--clean", "--config-file", str(folder / "site.yml")]
    command = [sys.executable, "-m", "zensical", "build", *options]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True)  # noqa: S603  # ours, no shell
    if built.returncode == 0:
        return 0, str(folder / "site" / "index.html")
    told = re.sub(r"\x1b\[[\d;]*m", "", built.stdout)
    return built.returncode, told + built.stderr.strip().rpartition("\n")[2]


def write_pages(folder: Path) -> None:
    """Write all pages and their assets: documents, the reference, and linked repository files."""
    for place, text in {**documents(), **reference().pages}.items():
        write(folder / place, text)
    for path in DOCS.rglob("*"):
        if path.suffix in {".png", ".svg", ".css", ".js"}:
            (folder / path.relative_to(DOCS)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / path.relative_to(DOCS))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def documents() -> dict[str, str]:
    """Return the documents and the files they link to, by path in the site."""
    pages: dict[str, str] = {}
    wanted = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ALWAYS)]
    while wanted:
        path = wanted.pop(0)
        if place_of(path) in pages:
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            pages[place_of(path)] = page_of(path, text)
            wanted += [target for target in targets(path, text) if not target.is_relative_to(DOCS)]
        elif path.suffix == ".ipynb":
            pages[place_of(path)] = notebook_page(path, text)
        else:
            title, language = path.relative_to(ROOT).as_posix(), LANGUAGES.get(path.suffix, "text")
            pages[place_of(path)] = f"# {title}\n\n````{language}\n{text}````\n"
    return pages


def notebook_page(path: Path, text: str) -> str:
    """Return a notebook's cells as a page, with links that open it elsewhere if the repository is known."""
    sources = [("".join(cell["source"]), cell["cell_type"]) for cell in json.loads(text)["cells"]]
    cells = [source if kind == "markdown" else f"````python\n{source}\n````" for source, kind in sources]
    repository, name = os.environ.get("GITHUB_REPOSITORY"), path.relative_to(ROOT).as_posix()
    if repository:
        colab = f"https://colab.research.google.com/github/{repository}/blob/main/{name}"
        binder = f"https://mybinder.org/v2/gh/{repository}/main?labpath={name}"
        title, _, rest = cells[0].partition("\n")
        cells[0] = f"{title}\n\n[Open in Colab]({colab}) or [in Binder]({binder}).\n{rest}"
    return "\n\n".join(cells) + "\n"


def place_of(path: Path) -> str:
    """Return the path in the site of a repository file."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    place = f"files/{path.relative_to(ROOT).as_posix()}"
    return place if path.suffix == ".md" else f"{place}.md"


def targets(path: Path, text: str) -> Iterator[Path]:
    """Yield the repository files that a page links to."""
    for found in LINK.finditer(FENCED.sub("", text)):
        target = (path.parent / found[1]).resolve()
        if target.is_file() and target.is_relative_to(ROOT):
            yield target


def page_of(path: Path, text: str) -> str:
    """Convert a document to a page of the site."""
    here = Path(place_of(path)).parent

    def led(found: re.Match[str]) -> str:
        target = (path.parent / found[1]).resolve()
        if not target.is_file() or not target.is_relative_to(ROOT):
            return found[0]  # a generated page, or a broken link that the builder will report
        return os.path.relpath(place_of(target), here)

    def referred(found: re.Match[str]) -> str:
        place = reference().places.get(found[1])
        return f"[{found[0]}]({os.path.relpath(place, here)})" if place else found[0]

    def drawn(found: re.Match[str]) -> str:
        picture = (path.parent / found[1]).read_text(encoding="utf-8").replace(BY_ITSELF, "")
        return f'<div class="picture" data-search-exclude>{picture.strip()}</div>'

    def said(piece: str) -> str:
        piece = LINK.sub(led, PICTURE.sub(drawn, piece))
        return "\n".join(line_of(line) for line in piece.split("\n"))

    def line_of(line: str) -> str:
        if line.startswith("#"):
            return line
        in_table = line.startswith("|")
        line = IN_A_LINE.sub(lambda found: mathml(found[1], "block" if in_table else "inline", "span"), line)
        line = NAME.sub(referred, line)
        line = FLAG.sub(r'<code class="flag">\1</code>', line)
        return LONG_NAME.sub(breakable, line) if in_table else line

    def fenced(block: str) -> str:
        found = EQUATION.fullmatch(block)
        return mathml(found[1], "block", "div") if found else block

    head = f"---\nhide: {HIDE[place_of(path)]}\n---\n\n" if place_of(path) in HIDE else ""
    return head + outside_fences(text, said, fenced)


def outside_fences(text: str, said: Callable[[str], str], fenced: Callable[[str], str]) -> str:
    """Apply ``said`` to the prose and ``fenced`` to the fenced blocks."""
    done, end = [], 0
    for found in FENCED.finditer(text):
        done += [said(text[end : found.start()]), fenced(found[0])]
        end = found.end()
    return "".join([*done, said(text[end:])])


def breakable(found: re.Match[str]) -> str:
    """Allow line breaks after punctuation in a long name in a table cell."""
    name = re.sub(r"([./:_]+)", r"\1<wbr>", html.escape(found[1])).replace("_", "&#95;")
    return f"<code>{name}</code>"


def mathml(latex: str, display: str, tag: str) -> str:
    """Convert an equation to MathML, escaped so that Markdown leaves it alone."""
    latex = " ".join(latex.split())
    made = convert(latex, display=display).replace("<math ", f'<math alttext="{html.escape(latex)}" ', 1)
    made = made.replace("<mi>:</mi>", "<mo>:</mo>").replace("<mo>:</mo><mo>&#x0003D;</mo>", "<mo>&#x2254;</mo>")
    made = re.sub(r"[*_\[\]`|\\]", lambda found: f"&#{ord(found[0])};", made)
    scrolls = ' class="equation"' if tag == "div" else ""
    return f"<{tag}{scrolls}>{made}</{tag}>"


def settings(folder: Path) -> str:
    """Return the builder's settings, with folders expanded to their pages."""

    def pages(found: re.Match[str]) -> str:
        indent, title, name = found.groups()
        nav = reference().nav() if name == "reference" else of_folder(folder / "pages" / name)
        if not nav:
            return ""
        return f"{indent}- {title}:\n" + "".join(f"{indent}    {line}\n" for line in nav)

    return re.sub(r"^( *)- ([^:\n]+): ([\w-]+)/ *(?:#.*)?\n", pages, SETTINGS.read_text("utf-8"), flags=re.MULTILINE)


def of_folder(folder: Path) -> list[str]:
    """Return navigation lines for a folder: the index first, then the other pages by name."""
    names = sorted((path.name for path in folder.glob("*.md")), key=lambda name: (name != "index.md", name))
    return [f"- {folder.name}/{name}" for name in names]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
