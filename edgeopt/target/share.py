"""Where the shipped data lies."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def share_dir(kind: str) -> Path:
    """Folder of the shipped data of a kind (``targets``, ``calibration``): in the wheel, else in the checkout."""
    package = Path(str(resources.files("edgeopt")))
    packaged = package / "_share" / kind
    return packaged if packaged.is_dir() else package.parent / kind
