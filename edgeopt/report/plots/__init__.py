"""Charts as SVG text: pure, deterministic, styled by the page's CSS classes, no script.

Every function takes the width of its view box in px and returns one ``<svg>`` element. Colours come from the classes
``float``, ``low``, ``other``, ``rest``; each series also carries a direct label or a shape of its own, so that colour
is never alone.
"""

from edgeopt.report.plots.axis import Scale, Unit, broken, ticks
from edgeopt.report.plots.bars import Bar, bars
from edgeopt.report.plots.calls import Panel, calls
from edgeopt.report.plots.course import Trace, Track, course
from edgeopt.report.plots.ecdf import Curve, ecdf
from edgeopt.report.plots.histogram import histogram
from edgeopt.report.plots.live import Steps, timeline
from edgeopt.report.plots.marks import CAUSES, Mark, dash, key, stairs
from edgeopt.report.plots.scatter import Dot, scatter

__all__ = [
    "CAUSES",
    "Bar",
    "Curve",
    "Dot",
    "Mark",
    "Panel",
    "Scale",
    "Steps",
    "Trace",
    "Track",
    "Unit",
    "bars",
    "broken",
    "calls",
    "course",
    "dash",
    "ecdf",
    "histogram",
    "key",
    "scatter",
    "stairs",
    "ticks",
    "timeline",
]
