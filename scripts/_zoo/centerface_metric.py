"""Metric of CenterFace: is the largest value of the heat map on the right side of 0.3?"""

import numpy as np

HEAT, THRESHOLD = "537", 0.3


def right(outputs, label):
    """1.0 where a face is found and there is one, or none and there is none."""
    return float((np.max(outputs[HEAT]) > THRESHOLD) == bool(label))
