"""Metric of silero-vad on blocks of frames: the area under the ROC curve over all frames."""

import numpy as np


def auc(outputs, label):
    """Scores and labels of the frames of one block."""
    return np.concatenate((np.ravel(outputs["speech_probs"]), np.ravel(label)))


def area(rows):
    """Mann and Whitney's U over all pairs of frames; ties count half."""
    half = rows.shape[1] // 2
    scores, speech = rows[:, :half].ravel(), rows[:, half:].ravel() > 0
    low, high = np.sort(scores[~speech]), scores[speech]
    wins = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return wins.sum() / 2 / (len(low) * len(high))
