"""What a model needs of memory, computed from its graph. Pure: nothing here runs a model."""

from __future__ import annotations

from edgeopt.memory.liveness import VIEWS, Buffers, Footprint, Moment, Rules, Sizes, footprint, macs, timeline
from edgeopt.memory.predicted import Predicted

__all__ = ["VIEWS", "Buffers", "Footprint", "Moment", "Predicted", "Rules", "Sizes", "footprint", "macs", "timeline"]
