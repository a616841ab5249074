"""What axe-core says about a page that is open in a browser."""

from typing import Any

from needs import AXE

COLOURS = ["color-contrast", "link-in-text-block"]


def faults(browser: Any, *, dark: bool) -> list[dict[str, Any]]:
    """Return the violations of the open page. In the dark theme only colours are checked: nothing else differs.

    Checking the colours of each letter of an equation takes many seconds, so equations become plain text of the same colour.
    """
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text(encoding="utf-8")})
    wait_for_colours(browser)
    found = [] if dark else run(browser, {"rules": {name: {"enabled": False} for name in COLOURS}})
    browser.execute_script("for (const each of document.querySelectorAll('math')) each.textContent = each.textContent")
    return found + run(browser, {"runOnly": COLOURS})


def run(browser: Any, options: dict[str, Any]) -> list[dict[str, Any]]:
    script = "return axe.run(document, arguments[0]).then((found) => found.violations)"
    return browser.execute_script(script, {"resultTypes": ["violations"], **options})


def wait_for_colours(browser: Any) -> None:
    """Wait until nothing fades to the colours of another theme any more."""
    fades = "document.getAnimations().filter((each) => each instanceof CSSTransition).map((each) => each.finished)"
    script = f"return new Promise(requestAnimationFrame).then(() => Promise.allSettled({fades})).then(() => null)"
    browser.execute_script(script)
