"""basic-pitch: which notes sound in two seconds. The same network as .onnx and, kept beside it, as .tflite.

The sounds are tones of one piano key each, a few harmonics and a decay. A tone is right when the key whose note
activation is largest over time is the one that was played.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from _zoo import basic_pitch_metric, sets
from _zoo.packages import BASIC_PITCH, check, fetch, member

FOLDER = "basic_pitch/saved_models/icassp_2022"
SHA256 = {
    "nmp.onnx": "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
    "nmp.tflite": "3db297d54af8e01c6e5618245c956b1d71b6a2b978cb2dedb527173186552676",
}

INPUT, NOTE = "serving_default_input_2:0", "StatefulPartitionedCall:1"
RATE, LENGTH, LOWEST_HZ = 22050, 43844, 27.5
KEYS = range(15, 75)
"""Keys in use, of 88 from the lowest A of a piano."""


def make(folder: Path, cache: Path) -> str:
    """Network, sets and source note; returns the figures."""
    package = fetch(BASIC_PITCH, cache)
    for name, sha256 in SHA256.items():
        stored = check(member(package, f"{FOLDER}/{name}"), sha256, name)
        (folder / name.replace("nmp", "model")).write_bytes(stored)
    for name, seed, each in (("calib", 1, 1), ("eval", 2, 2)):
        rng = np.random.default_rng(seed)
        keys = np.repeat(np.array(KEYS, np.int64), each)
        np.save(folder / f"{name}.npy", np.stack([tone(int(key), rng) for key in keys]))
        np.save(folder / f"{name}-labels.npy", keys)
        sets.describe(
            folder / f"{name}.toml",
            name=f"basic-pitch-{name}",
            description=f"{len(keys)} tones of one piano key each, two seconds at 22,050 Hz",
            inputs={INPUT: {"file": f"{name}.npy"}},
            settings={"metric": "basic_pitch_metric:right", "labels": f"{name}-labels.npy"},
        )
    sets.write_module(folder, basic_pitch_metric)
    sets.write_build(folder, ("model.onnx",))
    sets.write_source(folder, "basic-pitch 0.4.0, Apache-2.0: model.onnx and model.tflite. The tones are computed.\n")
    running = sets.session(folder / "model.onnx")
    tones, truth = np.load(folder / "eval.npy"), np.load(folder / "eval-labels.npy")
    right = [int(running.run([NOTE], {INPUT: x[None]})[0][0].mean(0).argmax()) == key for x, key in zip(tones, truth)]
    sets.expect("the share of right keys", float(np.mean(right)), 1.0, 0.02)
    return f"{sets.megabytes(folder / 'model.onnx')}, {sum(right)} of {len(right)} keys"


def tone(key: int, rng: np.random.Generator) -> np.ndarray:
    """float32 [43844,1]: up to eight harmonics below 10 kHz, a decay, a little noise."""
    seconds = np.arange(LENGTH) / RATE
    pitch = LOWEST_HZ * 2 ** ((key + rng.uniform(-0.1, 0.1)) / 12)
    sound = np.zeros(LENGTH)
    for harmonic in range(1, 9):
        if harmonic * pitch < 10_000:
            amplitude = rng.uniform(0.5, 1) / harmonic**1.5
            sound += amplitude * np.sin(2 * np.pi * (harmonic * pitch * seconds + rng.uniform()))
    start = rng.uniform(0, 0.3)
    sound *= np.where(seconds < start, 0, np.exp(-(seconds - start) * rng.uniform(0.5, 2)))
    sound = 0.3 * sound / np.abs(sound).max() + rng.normal(0, 1e-3, LENGTH)
    found: np.ndarray = sound.astype(np.float32)[:, None]
    return found
