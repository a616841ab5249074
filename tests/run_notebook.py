"""Run a notebook's cells as a kernel does: one after the other, in one ``__main__`` that has no file; what the last line names is shown.

``python -c "$(cat tests/run_notebook.py)" NOTEBOOK`` prints what each cell shows, and ends with a traceback where one fails.
"""

import ast
import json
import sys
from pathlib import Path


def run(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            run_cell("".join(cell["source"]), cell["id"])


def run_cell(source: str, name: str) -> None:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), globals())
    if isinstance(last, ast.Expr):
        show(eval(compile(ast.Expression(last.value), name, "eval"), globals()))


def show(value: object) -> None:
    """As a notebook: by its own HTML, if it has any, and here in a line too."""
    if value is not None:
        page = getattr(value, "_repr_html_", lambda: "plain")()
        assert page is None or page  # None: by something else, such as a table of pandas that is told to
        print(repr(value))


run(Path(sys.argv[1]))
