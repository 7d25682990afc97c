"""silero-vad: one network in five graphs, and as TorchScript. Is there speech in these 32 ms?

Twenty-five If, three, one, or none; an LSTM or one spelled out; the state is an input and an output, its batch on axis
1. Every sample is one frame, or one block of frames; its state comes from the sample before.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from _zoo import sets, silero_metric, speech
from _zoo.packages import SILERO, check, fetch, member

SHA256 = {
    "silero_vad.onnx": "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    "silero_vad_16k_op15.onnx": "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
    "silero_vad_16k_sequence.onnx": "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
    "silero_vad_op18_ifless.onnx": "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
    "silero_vad_openvino_16k.onnx": "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
    "silero_vad.jit": "e1122837f4154c511485fe0b9c64455f7b929c96fbb8d79fbdb336383ebd3720",
}

CALIBRATION_SECONDS, EVALUATION_SECONDS = 20.0, 60.0
BLOCK = 25
"""Frames of one sample of the network that takes sequences."""

KNOWN_AUC = 0.93
STATE = (2, 1, 128)
SOURCE = (
    "silero-vad 6.2.3, MIT.\n"
    "Speech: Debian's asterisk-core-sounds-en-wav 1.6.1-1; music: asterisk-moh-opsound-wav 2.03-1.1. See the notes on\n"
    "their licences there; do not redistribute them.\n"
)


def make(folder: Path, cache: Path) -> str:
    """The streaming graph for 8 and 16 kHz, as it is loaded by default."""
    return _streaming(folder, cache, "silero_vad.onnx", rate=True)


def make_op15(folder: Path, cache: Path) -> str:
    """16 kHz, opset 15."""
    return _streaming(folder, cache, "silero_vad_16k_op15.onnx", rate=True)


def make_ifless(folder: Path, cache: Path) -> str:
    """Opset 18, one If."""
    return _streaming(folder, cache, "silero_vad_op18_ifless.onnx", rate=True)


def make_openvino(folder: Path, cache: Path) -> str:
    """16 kHz, all shapes fixed, no If."""
    return _streaming(folder, cache, "silero_vad_openvino_16k.onnx", rate=False)


def make_sequence(folder: Path, cache: Path) -> str:
    """16 kHz, a block of frames a call; state as two inputs."""
    _copy(folder, cache, "silero_vad_16k_sequence.onnx", "model.onnx")
    given: dict[str, Mapping[str, object]] = {"h": {"from": "hn"}, "c": {"from": "cn"}}
    metric = {"function": "silero_metric:auc", "score": "silero_metric:area"}
    judged = _write_sets(folder, cache, name="input", given=given, metric=metric, block=BLOCK)
    sets.write_module(folder, silero_metric)
    sets.write_build(folder, ("model.onnx",))
    running, state, scores = sets.session(folder / "model.onnx"), [np.zeros((1, 1, 128), np.float32)] * 2, []
    for block in np.load(folder / "eval-input.npy"):
        answer, *state = running.run(None, {"input": block, "h": state[0], "c": state[1]})
        scores.append(answer)
    return _figures(folder, np.concatenate(scores), judged)


def make_torchscript(folder: Path, cache: Path) -> str:
    """Keeps its state and the end of the last frame inside; takes 512 samples and the rate."""
    import torch

    _copy(folder, cache, "silero_vad.jit", "model.pt")
    given: dict[str, Mapping[str, object]] = {"context": {"from": "next_context"}, "state": {"from": "next_state"}}
    judged = _write_sets(folder, cache, name="x", given=given, metric={"name": "auc"}, before=0)
    sets.write_build(folder, ("model.pt", "--shape", f"x=1x{speech.FRAME}", "--shape", f"sr={speech.RATE}"))
    network = torch.jit.load(io.BytesIO((folder / "model.pt").read_bytes())).eval()
    network.reset_states()
    with torch.no_grad():
        frames = torch.from_numpy(np.load(folder / "eval-x.npy"))
        scores = np.array([float(network(frame[None], speech.RATE)) for frame in frames])
    return _figures(folder, scores, judged, "model.pt")


def _streaming(folder: Path, cache: Path, file: str, *, rate: bool) -> str:
    _copy(folder, cache, file, "model.onnx")
    given: dict[str, Mapping[str, object]] = {"state": {"from": "stateN"}}
    if rate:
        given["sr"] = {"value": speech.RATE}
    judged = _write_sets(folder, cache, name="input", given=given, metric={"name": "auc", "output": "output"})
    sets.write_build(folder, ("model.onnx",))
    running, state, scores = sets.session(folder / "model.onnx"), np.zeros(STATE, np.float32), []
    fixed = {"sr": np.array(speech.RATE, np.int64)} if rate else {}
    for frame in np.load(folder / "eval-input.npy"):
        answer, state = running.run(["output", "stateN"], {"input": frame[None], "state": state, **fixed})
        scores.append(float(answer[0, 0]))
    return _figures(folder, np.array(scores), judged)


def _write_sets(
    folder: Path,
    cache: Path,
    *,
    name: str,
    given: Mapping[str, Mapping[str, object]],
    metric: Mapping[str, object],
    before: int = speech.CONTEXT,
    block: int | None = None,
) -> np.ndarray:
    """Both sets, one frame or block a sample; whether each frame of the evaluation set is speech.

    Args:
        name: of the input that takes frames.
        given: how the other inputs come about.
        before: samples of the last frame in front of each.
        block: frames of a sample, None for one without an axis of its own.
    """
    both = speech.recordings(cache, CALIBRATION_SECONDS, EVALUATION_SECONDS)
    for file, recording in zip(("calib", "eval"), both):
        frames, labels = recording.frames[:, speech.CONTEXT - before :], recording.speech.astype(np.int64)
        if block is not None:
            frames, labels = frames.reshape(-1, block, frames.shape[1]), labels.reshape(-1, block)
        np.save(folder / f"{file}-{name}.npy", frames)
        np.save(folder / f"{file}-labels.npy", labels)
        sets.describe(
            folder / f"{file}.toml",
            name=f"{folder.name}-{file}",
            description=f"{len(recording.frames)} frames of speech with music at 0 dB",
            inputs={name: {"file": f"{file}-{name}.npy"}, **given},
            settings={"metric": metric, "labels": f"{file}-labels.npy"},
        )
    return both[1].speech


def _copy(folder: Path, cache: Path, file: str, name: str) -> None:
    stored = member(fetch(SILERO, cache), f"silero_vad/data/{file}")
    (folder / name).write_bytes(check(stored, SHA256[file], file))


def _figures(folder: Path, scores: np.ndarray, labels: np.ndarray, file: str = "model.onnx") -> str:
    sets.write_source(folder, SOURCE)
    area = sets.expect("the AUC", sets.auc(scores, labels), KNOWN_AUC, 0.01)
    return f"{sets.megabytes(folder / file)}, AUC {area:.3f} on {len(labels)} frames"
