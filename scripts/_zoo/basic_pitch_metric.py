"""Metric of basic-pitch: is the key with the largest mean activation the one that was played?"""

import numpy as np

NOTE = "StatefulPartitionedCall:1"


def right(outputs, label):
    """1.0 or 0.0; the activations are [1,172,88]."""
    return float(np.argmax(np.mean(outputs[NOTE], axis=(0, 1))) == label)
