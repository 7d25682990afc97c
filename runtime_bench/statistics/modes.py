"""Whether the calls of a measurement are of one kind or of several: big and little cores, boost states, two paths."""

from __future__ import annotations

import math
from typing import List, NamedTuple, Optional, Sequence, Tuple

from runtime_bench.statistics import stats

SCREEN = 5 / 9
"""Bimodality coefficient of a uniform distribution; below it nothing is searched."""

VALLEY = 0.8
"""Two peaks are apart where the density between them falls to this share of the lower one."""

SIGMAS = 2.0
"""And by more than so many standard errors of the difference."""

MOST = 4000
"""Of more values every k-th is used."""

LEAST_SHARE = 0.05
"""Part of the calls that a mode has at least."""

GRID = 256
NARROWEST = 2e-3
"""Least bandwidth, of the logarithm: modes that are closer than about 1 % are of no interest."""


class Modality(NamedTuple):
    """``modes`` are (latency at the peak, share of the calls), fastest first; one entry where there is one kind."""

    coefficient: Optional[float]
    modes: List[Tuple[float, float]]


def modes(values: Sequence[int]) -> Modality:
    """Modes of the distribution of latencies, on a logarithmic scale.

    A coefficient of bimodality above 5/9 (SAS's definition, with sample skewness and kurtosis) makes a distribution
    suspect. Then a kernel density estimate has to show peaks with a valley between them that falls to 80 % of the lower
    peak, more than chance explains, and 5 % of the calls on each side.

    Args:
        values: latencies of one process in any order, at least one. Calls of several processes belong into
            ``modes_within``: processes that differ would make modes of their own.
    """
    return _modes([math.log(max(value, 1)) for value in values])


def modes_within(groups: Sequence[Sequence[int]]) -> Modality:
    """Modes inside processes: each process is moved to the common level before their calls are pooled.

    The level is the mean of the logarithms without the 5 % at each end: a median would jump from mode to mode.

    Args:
        groups: one list of latencies a process; empty ones are left out, one value has to be there.
    """
    logs = [[math.log(max(value, 1)) for value in values] for values in groups if values]
    levels = [stats.trimmed_mean(values) for values in logs]
    common = stats.mean(levels)
    return _modes([value - level + common for values, level in zip(logs, levels) for value in values])


def _modes(logs: Sequence[float]) -> Modality:
    used = logs[:: -(-len(logs) // MOST)]
    coefficient = bimodality_coefficient(used)
    found = _separate(used) if coefficient is not None and coefficient > SCREEN else []
    if len(found) < 2:
        ordered = sorted(used)
        found = [(ordered[(len(ordered) - 1) // 2], 1.0)]
    return Modality(coefficient, [(math.exp(center), share) for center, share in found])


def bimodality_coefficient(values: Sequence[float]) -> Optional[float]:
    """``(skewness^2 + 1) / (excess kurtosis + 3 (n - 1)^2 / ((n - 2) (n - 3)))``.

    None for fewer than 4 values, and where all are equal.
    """
    n = len(values)
    if n < 4:
        return None
    center, deviation = stats.mean(values), stats.standard_deviation(values)
    if deviation <= 1e-12 * max(abs(center), 1e-300):
        return None
    scaled = [(value - center) / deviation for value in values]
    skewness = math.fsum(z**3 for z in scaled) / n
    kurtosis = math.fsum(z**4 for z in scaled) / n - 3
    return (skewness * skewness + 1) / (kurtosis + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3)))


def _separate(logs: Sequence[float]) -> List[Tuple[float, float]]:
    """Centers of the modes that stand apart, with their shares."""
    ordered = sorted(logs)
    n = len(ordered)
    # far spikes would stretch the grid until a cell is wider than a mode: they count for shares alone
    width = _bandwidth(ordered)
    low, high = ordered[int(0.01 * n)] - 4 * width, ordered[n - 1 - int(0.01 * n)] + 4 * width
    step = (high - low) / (GRID - 1)
    width = max(width, step)
    counts = [0] * GRID
    for value in ordered:
        if low <= value <= high:
            counts[int((value - low) / step + 0.5)] += 1
    density = _smooth(counts, width / step)
    # variance of the estimate at x is f(x) R(K) / (n h), here in units of counts a cell
    noise = step / (2 * math.sqrt(math.pi) * width)
    peaks = [
        i
        for i in range(GRID)
        if density[i] > (density[i - 1] if i else -1.0) and density[i] >= (density[i + 1] if i + 1 < GRID else -1.0)
    ]
    valleys = [min(range(a, b + 1), key=density.__getitem__) for a, b in zip(peaks, peaks[1:])]
    return _merge(peaks, valleys, density, noise, [low + i * step for i in range(GRID)], ordered)


def _merge(
    peaks: List[int],
    valleys: List[int],
    density: Sequence[float],
    noise: float,
    at: Sequence[float],
    ordered: Sequence[float],
) -> List[Tuple[float, float]]:
    """Join the two peaks that are least apart, until all are apart and none is too small."""
    while len(peaks) > 1:
        depths = []
        for a, v, b in zip(peaks, valleys, peaks[1:]):
            lower, bottom = min(density[a], density[b]), density[v]
            clear = lower - bottom > SIGMAS * math.sqrt(noise * (lower + bottom))
            depths.append(bottom / lower if clear else 1.0)
        shares = _shares([at[v] for v in valleys], ordered)
        worst = max(range(len(depths)), key=depths.__getitem__)
        if depths[worst] > VALLEY:
            loser = worst if density[peaks[worst]] < density[peaks[worst + 1]] else worst + 1
        elif min(shares) < LEAST_SHARE:
            loser = min(range(len(shares)), key=shares.__getitem__)
        else:
            break
        beside = [i for i in (loser - 1, loser) if 0 <= i < len(valleys)]
        valleys.pop(max(beside, key=lambda i: density[valleys[i]]))
        peaks.pop(loser)
    return list(zip([at[p] for p in peaks], _shares([at[v] for v in valleys], ordered)))


def _shares(borders: Sequence[float], ordered: Sequence[float]) -> List[float]:
    counts = [0] * (len(borders) + 1)
    part = 0
    for value in ordered:
        while part < len(borders) and value > borders[part]:
            part += 1
        counts[part] += 1
    return [count / len(ordered) for count in counts]


def _bandwidth(ordered: Sequence[float]) -> float:
    """Silverman's rule ("Density Estimation", 1986, equation 3.31), no narrower than the steps of a coarse clock."""
    n = len(ordered)
    distance = ordered[(3 * n) // 4] - ordered[n // 4]
    deviation = stats.standard_deviation(ordered)
    scale = min(deviation, distance / 1.34) if distance > 0 else deviation
    distinct = sorted(set(ordered))
    gaps = sorted(b - a for a, b in zip(distinct, distinct[1:]))
    grain = gaps[len(gaps) // 2] if gaps else 0.0
    return max(0.9 * scale / math.pow(n, 0.2), NARROWEST, grain)


def _smooth(counts: Sequence[int], width: float) -> List[float]:
    """Counts a cell, convolved with a normal kernel of the given standard deviation in cells."""
    reach = min(int(4 * width) + 1, GRID - 1)
    kernel = [math.exp(-0.5 * (i / width) ** 2) for i in range(reach + 1)]
    total = kernel[0] + 2 * math.fsum(kernel[1:])
    smooth = [0.0] * GRID
    for i, count in enumerate(counts):
        if count:
            for j in range(max(0, i - reach), min(GRID, i + reach + 1)):
                smooth[j] += count * kernel[abs(i - j)]
    return [value / total for value in smooth]
