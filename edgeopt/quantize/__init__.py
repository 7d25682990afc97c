"""Static int8 quantization: statistics once, then as many Q/DQ graphs from them as there are choices to try."""

from edgeopt.quantize.insert import QuantizedModel, quantize_model
from edgeopt.quantize.pixels import float_copies, scheme_for
from edgeopt.quantize.placement import Placement, Rule, Table, plan_placement
from edgeopt.quantize.quantizer import Calibrated, Choice, calibrate, quantize

__all__ = [
    "Calibrated",
    "Choice",
    "Placement",
    "QuantizedModel",
    "Rule",
    "Table",
    "calibrate",
    "float_copies",
    "plan_placement",
    "quantize",
    "quantize_model",
    "scheme_for",
]
