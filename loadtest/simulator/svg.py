"""A chart as an SVG element inside a page: no file, no script, no font, colours from the page's CSS.

Text stays text. The same figure gives the same bytes: marks are numbered from the chart's key, without chance
or date.
"""

import io
import re
from html import escape

import matplotlib as mpl

from loadtest.simulator.theme import DARK, VARIABLES, Chart, style

_HEAD = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_GROUP_NAME = re.compile(r'(<(?:g|image)\b[^>]*?) id="[^"]*"')
_SIZE = re.compile(r'(<svg\b[^>]*?) width="[^"]*"|(<svg\b[^>]*?) height="[^"]*"')
_COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)
_FONT_NAMES = re.compile(r"font: ([^;\"']*?)'[^\";]*")
_NUMBER = re.compile(r"(\d+\.\d\d)\d+")


def inline_svg(chart: Chart) -> str:
    """Write a chart as an ``<svg>`` element that takes the width it is given."""
    buffer = io.StringIO()
    with style(), mpl.rc_context({"svg.hashsalt": chart.key}):
        chart.figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None}
        )
    text = _HEAD.sub("", buffer.getvalue(), count=1)
    for unwanted in (_METADATA, _COMMENT):
        text = unwanted.sub("", text)
    text = _GROUP_NAME.sub(r"\1", text)
    text = _SIZE.sub(lambda match: match[1] or match[2], text)
    text = _SIZE.sub(lambda match: match[1] or match[2], text)
    text = _FONT_NAMES.sub(r"font: \1var(--chart-font)", text)
    text = _NUMBER.sub(r"\1", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(chart.title)}"', 1)


def colour_rules() -> str:
    """The CSS declarations of both modes that `inline_svg` needs."""
    light = "".join(f"{variable}:{colour};" for colour, variable in VARIABLES.items())
    dark = "".join(f"{VARIABLES[colour]}:{dark};" for colour, dark in DARK.items())
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"
