"""Percentiles, intervals, tests and distances on plain lists of numbers. Imports nothing else of this package."""

from __future__ import annotations
