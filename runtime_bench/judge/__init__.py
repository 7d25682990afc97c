"""From the raw record of a measurement to summaries, causes, grades and comparisons. Pure: nothing is measured here."""

from __future__ import annotations
