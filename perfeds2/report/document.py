"""How do sections and charts become one file that opens anywhere, offline?

Everything is inside the file: plotly.js once, the charts as data, style and script. The page's own rules (its
Content-Security-Policy) let it load nothing and run only the two scripts written here, whatever a name contains.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from html import escape
from importlib.resources import files

from plotly.offline import get_plotlyjs

from perfeds2.report.charts import Chart


def document(title: str, sections: Iterable[str], charts: Iterable[Chart], style: str = "") -> str:
    """The whole page: sections are HTML, the title is text, ``style`` goes behind the page's own."""
    own = files("perfeds2.report")
    scripts = [get_plotlyjs(), own.joinpath("page.js").read_text(encoding="utf-8")]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src " + " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    data = json.dumps({chart.name: chart.figures for chart in charts}, separators=(",", ":"), allow_nan=False)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{own.joinpath('page.css').read_text(encoding='utf-8')}{style}</style>\n</head>\n<body>",
            *(section for section in sections if section),
            # In a script element only "<" can end the data early, and JSON may write it as an escape.
            f'<script type="application/json" id="charts">{data.replace("<", chr(92) + "u003c")}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def drawing(chart: Chart) -> str:
    """Where the script draws a chart."""
    return (
        f'<div class="chart" id="{chart.name}" style="height:{chart.height_px}px" role="img" '
        f'aria-label="{escape(chart.title)}"></div>'
    )
