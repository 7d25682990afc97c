"""Which networks are compared: their sets, how they are judged, what quantizes them and how edgeopt builds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

FLOAT = "float"
MINMAX, PERCENTILE, DYNAMIC = "onnxruntime min-max", "onnxruntime percentile", "onnxruntime dynamic"
DYNAMIC_CHANNEL = "onnxruntime dynamic, per channel"
MINMAX_FUSED = "onnxruntime min-max, fused by edgeopt"
NNCF_ONNX, NNCF_OPENVINO, NNCF_MIXED = "NNCF on ONNX", "NNCF on OpenVINO", "NNCF on OpenVINO, mixed"
ORT, OPENVINO = "onnxruntime", "openvino"

CONVOLUTIONAL = (MINMAX, PERCENTILE, NNCF_ONNX, NNCF_OPENVINO, NNCF_MIXED)

HALF = {"dev": 0, "final": 1}
"""First photo of the ten for development and of the ten held ones; the others are every second one from there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tool:
    """A peer: the environment that it runs in, its script, the method that the script is told, the form it writes.

    ``fused``: it gets the float network after edgeopt's rewrites, where those help it.
    """

    environment: str
    script: str
    method: str
    suffix: str = ".onnx"
    fused: bool = False


TOOLS: Mapping[str, Tool] = {
    MINMAX: Tool(environment="onnxruntime", script="with_onnxruntime.py", method="min-max"),
    MINMAX_FUSED: Tool(environment="onnxruntime", script="with_onnxruntime.py", method="min-max", fused=True),
    PERCENTILE: Tool(environment="onnxruntime", script="with_onnxruntime.py", method="percentile"),
    DYNAMIC: Tool(environment="onnxruntime", script="with_onnxruntime.py", method="dynamic"),
    DYNAMIC_CHANNEL: Tool(environment="onnxruntime", script="with_onnxruntime.py", method="dynamic per channel"),
    NNCF_ONNX: Tool(environment="nncf", script="with_nncf.py", method="onnx"),
    NNCF_OPENVINO: Tool(environment="nncf", script="with_nncf.py", method="openvino", suffix=".xml"),
    NNCF_MIXED: Tool(environment="nncf", script="with_nncf.py", method="openvino mixed", suffix=".xml"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """One ``edgeopt build``.

    Attributes:
        options: beside model, target, evaluation set and shapes.
        judged: its artifact is judged and timed; else only its time and memory count.
    """

    options: Sequence[str]
    judged: bool = True


CALIB = ("--calib", "calib.toml")
INT8 = Build(options=CALIB)
ASKED = Build(options=(*CALIB, "--quantize", "static"))
"""Int8 asked for by name: it is judged where it is slower than float too, and auto would ship float."""


STOCK_MEMORY = "memory=84MB"
"""What MiniLM takes as onnxruntime's own dynamic quantization leaves it, runtime and model: ours may take no more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A network of the zoo.

    Attributes:
        title: as the table calls it.
        sets: what it is judged on, by title; paths beside the model. ``groups`` says that samples come in turn from so
            many photos. ``evaluate`` is the one that edgeopt's builds choose by.
        model: the file beside the sets.
        shapes: fixed ones, for networks that need them.
        opset: what onnxruntime's tools need an older model to be converted to.
        transformer: NNCF is told so.
        needs_torch: edgeopt's build runs where torch is, and the float reference is its float artifact.
    """

    title: str
    sets: Mapping[str, Mapping[str, Any]]
    tools: Sequence[str]
    builds: Mapping[str, Build]
    runtimes: Sequence[str] = (ORT,)
    evaluate: str = "eval.toml"
    model: str = "model.onnx"
    shapes: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    opset: int | None = None
    transformer: bool = False
    needs_torch: bool = False


def networks(half: str) -> dict[str, Network]:
    """By name in the zoo; ``half`` is a key of ``HALF``. Builds never see the held photos."""
    photos = {
        "photos": {
            "set": f"eval-{half}.toml",
            "labels": "eval-labels.npy",
            "start": HALF[half],
            "stride": 2,
            "metric": "top1",
            "groups": 10,
        }
    }
    fashion = {
        "9,000 images": {
            "set": "../fashion-mnist-depthwise/eval.toml",
            "labels": "../fashion-mnist-depthwise/eval-labels.npy",
            "metric": "top1",
        }
    }
    correlated = {"metric": "pairs", "mask": "attention_mask"}
    both = (ORT, OPENVINO)
    return {
        "efficientnet-lite0": Network(
            title="EfficientNet-Lite0",
            sets=photos,
            evaluate="eval-dev.toml",
            tools=CONVOLUTIONAL,
            builds={
                "int8": INT8,
                "25 dB": Build(options=(*CALIB, "--min-sqnr", "25", "--max-float-macs", "5%")),
                "480 crops": Build(options=("--calib", "calib480.toml"), judged=False),
            },
            runtimes=both,
        ),
        "squeezenet": Network(
            title="SqueezeNet 1.1",
            sets=photos,
            evaluate="eval-dev.toml",
            tools=(MINMAX, MINMAX_FUSED, PERCENTILE, NNCF_ONNX, NNCF_OPENVINO, NNCF_MIXED),
            builds={"int8": INT8},
            runtimes=both,
        ),
        "centerface": Network(
            title="CenterFace",
            sets={
                "175 pictures": {
                    "set": "eval.toml",
                    "labels": "eval-labels.npy",
                    "metric": "peak",
                    "output": "537",
                    "threshold": 0.3,
                }
            },
            tools=CONVOLUTIONAL,
            builds={
                "int8": Build(options=(*CALIB, "--max-error", "537=0.15")),
                "heat 0.06": Build(options=(*CALIB, "--max-error", "537=0.06", "--max-float-macs", "100%")),
            },
            shapes={"input.1": (1, 3, 160, 160)},
            opset=13,
        ),
        "fashion-mnist": Network(
            title="Fashion-MNIST, residual", sets=fashion, tools=CONVOLUTIONAL, builds={"int8": ASKED}
        ),
        "fashion-mnist-depthwise": Network(
            title="Fashion-MNIST, depthwise", sets=fashion, tools=CONVOLUTIONAL, builds={"int8": ASKED}
        ),
        "minilm": Network(
            title="MiniLM-L6",
            sets={
                "wordsim353": {
                    "set": "eval-words.toml",
                    "pairs": "eval-words-pairs.csv",
                    "correlation": "spearman",
                    **correlated,
                },
                "Lee": {"set": "eval.toml", "pairs": "eval-pairs.csv", "correlation": "pearson", **correlated},
            },
            tools=(DYNAMIC, DYNAMIC_CHANNEL, MINMAX, NNCF_ONNX, NNCF_OPENVINO),
            builds={
                "int8": Build(options=(*CALIB, "--quantize", "dynamic", "--budget", STOCK_MEMORY)),
                "int4": Build(options=(*CALIB, "--quantize", "weights-int4")),
            },
            transformer=True,
        ),
        "ppocr-rec": Network(
            title="PP-OCRv6 rec",
            sets={
                "180 lines": {
                    "set": "eval.toml",
                    "labels": "eval-labels.txt",
                    "metric": "cer",
                    "charset": "characters.txt",
                    "parts": 3,
                }
            },
            tools=(MINMAX, PERCENTILE, NNCF_ONNX, NNCF_OPENVINO),
            builds={"int8": Build(options=(*CALIB, "--max-drop", "0.25%"))},
            opset=13,
        ),
        **{name: silero(name) for name in SILERO},
    }


SILERO = {
    "silero-vad": "default graph",
    "silero-vad-16k-op15": "opset 15",
    "silero-vad-16k-sequence": "sequence",
    "silero-vad-op18-ifless": "opset 18",
    "silero-vad-openvino-16k": "without If",
    "silero-vad-torchscript": "TorchScript",
}


def silero(name: str) -> Network:
    torchscript = name == "silero-vad-torchscript"
    outputs = {} if name.endswith(("sequence", "torchscript")) else {"output": "output"}
    return Network(
        title=f"silero-vad, {SILERO[name]}",
        sets={"60 s at 0 dB": {"set": "eval.toml", "labels": "eval-labels.npy", "metric": "auc", **outputs}},
        tools=() if torchscript else (DYNAMIC,),
        builds={"int8": Build(options=(*CALIB, "--quantize", "weights-int8"))},
        model="model.pt" if torchscript else "model.onnx",
        shapes={"x": (1, 512), "sr": (16000,)} if torchscript else {},
        needs_torch=torchscript,
    )
