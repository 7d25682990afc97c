"""Speech with music at 0 dB, as frames of 32 ms at 16 kHz that are labelled by the energy of the speech alone."""

from __future__ import annotations

import dataclasses
import io
import wave
from pathlib import Path

import numpy as np

from _zoo.packages import MUSIC, SPEECH, debian_members, fetch_debian

RATE, FRAME, CONTEXT = 16_000, 512, 64
GAP_SECONDS = 0.5
SPEECH_DB = -45.0
"""Frames whose speech is louder, over full scale, are speech."""

SIZES = range(30_000, 200_000)
"""Bytes of the recordings in use: neither single words nor long menus."""

MUSIC_START = 60 * RATE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recording:
    """Frames with the 64 samples before each, float32 [N,576], and whether each is speech, bool [N]."""

    frames: np.ndarray
    speech: np.ndarray


def recordings(cache: Path, *seconds: float) -> list[Recording]:
    """One mixture after the other, of such lengths; none shares a recording or a part of the music with another.

    Raises:
        UnavailableError: the Debian packages cannot be had here.
    """
    spoken = debian_members(fetch_debian(SPEECH, cache), ".wav")
    chosen = [stored for stored in spoken.values() if len(stored) in SIZES]
    order = iter(np.random.default_rng(1).permutation(len(chosen)))
    stored = debian_members(fetch_debian(MUSIC, cache), ".wav")
    music = np.concatenate([samples(one) for one in stored.values()])
    start, found = MUSIC_START, []
    for wanted in seconds:
        length = round(wanted * RATE) // FRAME * FRAME
        parts: list[np.ndarray] = []
        while sum(map(len, parts)) < length:
            parts += [samples(chosen[next(order)]), np.zeros(round(GAP_SECONDS * RATE))]
        found.append(mixed(np.concatenate(parts)[:length], music[start : start + length]))
        start += length
    return found


def mixed(speech: np.ndarray, music: np.ndarray) -> Recording:
    """Music as loud as the speech where there is some; both [n], n a multiple of 512."""
    power = (speech.reshape(-1, FRAME) ** 2).mean(1)
    heard = 10 * np.log10(power + 1e-12) > SPEECH_DB
    mixture = speech + music * np.sqrt(power[heard].mean() / (music**2).mean())
    before = np.concatenate((np.zeros(CONTEXT), mixture))
    frames = np.stack([before[at : at + CONTEXT + FRAME] for at in range(0, len(mixture), FRAME)])
    return Recording(frames=frames.astype(np.float32), speech=heard)


def samples(stored: bytes) -> np.ndarray:
    """A .wav file of one channel, 16 bits and 8 kHz, brought to 16 kHz by zeros in the spectrum; float64 [n]."""
    with wave.open(io.BytesIO(stored)) as file:
        if (file.getnchannels(), file.getsampwidth(), 2 * file.getframerate()) != (1, 2, RATE):
            raise ValueError(f"unexpected format: {file.getparams()}")
        narrow = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    spectrum = np.zeros(len(narrow) + 1, np.complex128)
    spectrum[: len(narrow) // 2 + 1] = np.fft.rfft(narrow)
    return 2 * np.fft.irfft(spectrum, 2 * len(narrow))
