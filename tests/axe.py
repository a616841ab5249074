"""What axe-core says about a page that is open in a browser."""

import os
from pathlib import Path
from typing import Any

import pytest

FILE = os.environ.get("PERFEDS2_AXE")  # axe.min.js of the npm package axe-core, if there is one
COLOURS = ["color-contrast", "link-in-text-block"]
needs_axe = pytest.mark.skipif(
    FILE is None, reason="$PERFEDS2_AXE names no axe.min.js; not checked: accessibility by axe-core"
)


def faults(browser: Any, *, dark: bool) -> list[dict[str, Any]]:
    """Return the violations. In the dark theme only the rules about colours are checked: nothing else differs."""
    assert FILE is not None
    options = {"resultTypes": ["violations"], **({"runOnly": COLOURS} if dark else {})}
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": Path(FILE).read_text(encoding="utf-8")})
    script = "axe.run(document, arguments[0]).then((found) => arguments[1](found.violations))"
    return browser.execute_async_script(script, options)
