"""What this machine is, allows and does meanwhile, read from ``/proc`` and ``/sys``."""

from __future__ import annotations
