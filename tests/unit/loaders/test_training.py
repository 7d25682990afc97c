"""IN11: torch networks captured in training mode are refused in the words of an ONNX one, or switched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt.errors import ModelError
from edgeopt.loaders import load
from tests.unit.loaders.files import run
from tests.unit.loaders.scripts import exported, noise

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch
nn: Any = torch.nn
jit: Any = torch.jit


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):  # what has no annotation is a Tensor
        return self.norm(self.drop(self.linear(x)))


def net() -> Any:
    torch.manual_seed(0)
    made = Net()
    made.norm.running_mean.uniform_(-1, 1)
    made.norm.running_var.uniform_(0.5, 2)
    return made


def in_eval(module: Any, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module.eval()(torch.from_numpy(x)).numpy()


def test_a_program_through_the_front_door(tmp_path: Path) -> None:
    module, path, x = net(), tmp_path / "net.pt2", noise(4, 8)
    torch.export.save(torch.export.export(module, (torch.randn(4, 8),)), path)
    loaded = load(path, force_eval=True)
    (note,) = loaded.origin.notes
    assert note.startswith("--force-eval: live Dropout")
    np.testing.assert_allclose(run(loaded.ir, {"x": x})[0], in_eval(module, x), rtol=1e-4, atol=1e-5)


def to_onnx(
    module: Any, example: Any, folder: Path, *, decomposed: bool = False, force_eval: bool = False
) -> list[str]:
    from edgeopt.loaders import _export_pt2

    program = torch.export.export(module, example)
    if decomposed:
        program = program.run_decompositions()
    return _export_pt2.to_onnx(program, str(folder / "net.onnx"), label="net.pt2", force_eval=force_eval)


def test_the_same_words_as_for_onnx(tmp_path: Path) -> None:
    from edgeopt.findings import training

    with pytest.raises(ModelError) as caught:
        to_onnx(net(), (torch.randn(4, 8),), tmp_path)
    assert caught.value.message == (
        "net.pt2 is captured in training mode: live Dropout (dropout), live BatchNormalization (batch_norm)"
    )
    assert caught.value.remedy == f"{training._EXPORT}, or give --force-eval to take it as if that had been done."


class Attention(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.LSTM(4, 8, 2, dropout=0.5)), (5, 1, 4)),
        (Attention(), (1, 2, 4, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.5)), (1, 3, 8, 8)),
    ],
)
def test_other_layers_that_train(tmp_path: Path, module: Any, shape: tuple[int, ...]) -> None:
    example = (torch.randn(shape),)
    with pytest.raises(ModelError, match="captured in training mode"):
        to_onnx(module, example, tmp_path)
    (note,) = to_onnx(module, example, tmp_path, force_eval=True)
    assert "switched off" in note


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.InstanceNorm2d(3), (1, 3, 4, 4)),
        (nn.BatchNorm1d(8, track_running_stats=False), (4, 8)),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0), nn.GroupNorm(2, 8)), (4, 8)),
        (nn.LSTM(4, 8), (5, 1, 4)),
    ],
)
def test_layers_that_only_look_like_training(tmp_path: Path, module: Any, shape: tuple[int, ...]) -> None:
    """Captured without eval(), and the same in both modes."""
    assert to_onnx(module, (torch.randn(shape),), tmp_path) == []


def test_statistics_that_are_outputs_cannot_be_taken_away(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--force-eval cannot help: the program was decomposed"):
        to_onnx(net(), (torch.randn(4, 8),), tmp_path, decomposed=True, force_eval=True)


def test_a_script_in_training_mode(tmp_path: Path) -> None:
    module, x = net(), noise(4, 8)
    script = jit.script(module)
    with pytest.raises(ModelError, match="captured in training mode: 1 live Dropout, 1 live BatchNormalization"):
        exported(tmp_path, script, "x=4x8")
    model, facts = exported(tmp_path, script, "x=4x8", force_eval=True)
    assert facts["notes"] == ["--force-eval: 1 live Dropout, 1 live BatchNormalization; switched to eval mode"]
    np.testing.assert_allclose(run(model, {"x": x})[0], in_eval(module, x), rtol=1e-4, atol=1e-5)
    exported(tmp_path, jit.script(nn.Sequential(nn.Linear(8, 4), nn.ReLU())), "input=4x8")  # trains nothing


def test_a_trace_has_the_mode_in_its_code(tmp_path: Path) -> None:
    traced = jit.trace(net(), torch.randn(4, 8), check_trace=False)
    with pytest.raises(ModelError, match="give --force-eval"):
        exported(tmp_path, traced)
    with pytest.raises(ModelError, match="--force-eval cannot help: .* when it was traced"):
        exported(tmp_path, traced, force_eval=True)
    in_use = jit.trace(net().eval(), torch.randn(4, 8))
    assert exported(tmp_path, in_use)[1]["notes"] == []


def test_outputs_that_only_training_has(tmp_path: Path) -> None:
    class Auxiliary(nn.Module):
        def forward(self, x):
            return [x, x + 1] if self.training else [x * 2]

    class Raw(nn.Module):
        def forward(self, x):
            return x if self.training else torch.softmax(x, 0)

    with pytest.raises(ModelError, match="it returns other values than in eval mode"):
        exported(tmp_path, jit.script(Raw()), "x=3")
    script = jit.script(Auxiliary())
    with pytest.raises(ModelError, match="it returns 2 tensors, in eval mode 1"):
        exported(tmp_path, script, "x=3")
    model, _ = exported(tmp_path, script, "x=3", force_eval=True)
    np.testing.assert_allclose(run(model, {"x": np.ones(3, np.float32)})[0], 2)
