"""``.pt2`` programs: exported in a child process, compared with torch, nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from edgeopt.errors import ModelError, ToolchainError
from edgeopt.loaders import _export_pt2, exporting, load, sniff
from tests.unit.loaders.files import dense_weight, model, run, value, write, write_external
from tests.unit.loaders.programs import WEIGHTS, W, edit_json, write_program


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files of the test and of its child processes go here."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def saved_by_torch(path: Path) -> Any:
    """Two inputs, a batch norm, a dropout and two outputs by name; returns the module."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(4)
            self.drop = torch.nn.Dropout(0.5)
            self.head = torch.nn.Linear(4, 5)
            self.register_buffer("gain", torch.full((1, 4, 1, 1), 2.0))

        def forward(self, x: Any, *, scale: Any) -> dict[str, Any]:
            hidden = torch.relu(self.norm(self.conv(x))) * self.gain * scale
            logits = self.head(self.drop(hidden.mean((2, 3))))
            return {"logits": logits, "probabilities": torch.softmax(logits, 1)}

    torch.manual_seed(0)
    net = Net().eval()
    net.norm.running_mean.uniform_(-1, 1)
    example = (torch.randn(2, 3, 8, 8),)
    program = torch.export.export(net, example, {"scale": torch.tensor([1.5])})
    torch.export.save(program, path)
    return net


@pytest.mark.needs_torch
def test_a_program_saved_by_torch(tmp_path: Path, scratch: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "net (1) ü.pt2"
    net = saved_by_torch(path)
    for left in scratch.iterdir():
        shutil.rmtree(left)  # by torch in this process
    before = path.read_bytes()
    loaded = load(path)
    assert [str(s) for s in loaded.inputs] == ["x: float32[2, 3, 8, 8]", "scale: float32[1]"]
    assert [s.shape for s in loaded.outputs] == [(2, 5), (2, 5)]
    assert loaded.origin.format == "pt2"
    assert loaded.origin.files == (path,)
    assert loaded.origin.path == path
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(2, 3, 8, 8)).astype(np.float32), "scale": np.array([0.5], np.float32)}
    with torch.no_grad():
        expected = net(torch.from_numpy(feeds["x"]), scale=torch.from_numpy(feeds["scale"]))
    got = run(loaded.ir, feeds)
    np.testing.assert_allclose(got[0], expected["logits"].numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[1], expected["probabilities"].numpy(), rtol=1e-4, atol=1e-5)
    text = str(ir.to_proto(loaded.ir))
    assert "stack_trace" not in text
    assert str(tmp_path) not in text
    assert __file__ not in text
    assert list(scratch.iterdir()) == []
    assert path.read_bytes() == before

    # The same file as it is, in another process: the checked copy changed nothing, and names are stable.
    trusted = load(path, trust_pickle=True)
    assert bytes_of(trusted) == bytes_of(loaded)


def bytes_of(model: Any) -> bytes:
    return ir.to_proto(model.ir).SerializeToString(deterministic=True)


@pytest.mark.needs_torch
def test_symbolic_sizes_stay(tmp_path: Path, scratch: Path) -> None:
    pytest.importorskip("torch")
    path = write_program(tmp_path / "m.pt2")
    loaded = load(path)
    ((batch, width),) = (s.shape for s in loaded.inputs)
    assert isinstance(batch, str)
    assert width == 3
    assert loaded.outputs[0].shape == (batch, 4)
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(run(loaded.ir, {"x": x})[0], np.maximum(x @ W, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.needs_torch
def test_a_pickled_weight_loads_when_trusted(tmp_path: Path, scratch: Path) -> None:
    torch = pytest.importorskip("torch")
    weight = tmp_path / "w.pt"
    torch.save(torch.nn.Parameter(torch.from_numpy(W.copy())), weight)

    def edit(content: dict[str, bytes]) -> None:
        content["data/weights/weight_1"] = weight.read_bytes()
        edit_json(content, WEIGHTS, lambda d: d["config"]["w"].update(use_pickle=True, path_name="weight_1"))

    path = write_program(tmp_path / "m.pt2", edit)
    with pytest.raises(ModelError, match="--trust-pickle"):
        load(path)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(run(load(path, trust_pickle=True).ir, {"x": x})[0], np.maximum(x @ W, 0), rtol=1e-5)


@pytest.mark.needs_torch
def test_what_torch_cannot_export_is_told_in_its_words(tmp_path: Path, scratch: Path) -> None:
    pytest.importorskip("torch")

    def edit(content: dict[str, bytes]) -> None:
        content["models/model.json"] = content["models/model.json"].replace(
            b"aten.relu.default", b"aten.nosuch.default"
        )

    with pytest.raises(ModelError, match=r"m\.pt2 cannot be exported to ONNX") as caught:
        load(write_program(tmp_path / "m.pt2", edit))
    assert "nosuch" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 15
    assert list(scratch.iterdir()) == []


@pytest.mark.needs_torch
def test_an_export_that_computes_something_else_is_caught(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    program = torch.export.load(write_program(tmp_path / "m.pt2"))

    def exported(weight: np.ndarray) -> str:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
        proto = model(nodes, [value("x", ["N", 3])], [value("y", ["N", 4])], {"w": weight})
        return str(write(tmp_path / "e.onnx", proto))

    _export_pt2._compare(program, exported(W))
    with pytest.raises(SystemExit, match=r"output 0 .* differs from the torch program by 1.0e-02"):
        _export_pt2._compare(program, exported(W * np.float32(1.01)))


@pytest.mark.needs_torch
def test_a_program_that_keeps_a_state_is_refused(tmp_path: Path) -> None:
    """A batch norm in training mode changes its statistics at every call; ONNX would not."""
    torch = pytest.importorskip("torch")
    program = torch.export.export(torch.nn.BatchNorm1d(3), (torch.randn(4, 3),))
    with pytest.raises(SystemExit, match=r"changes its own buffers .*call \.eval\(\) first"):
        _export_pt2._run(program, "randn")


def test_without_torch_the_pip_line_is_told(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError) as caught:
        load(write_program(tmp_path / "m.pt2"))
    assert caught.value.exit_code == 6
    assert caught.value.remedy == 'pip install "edgeopt[torch]"'
    assert list(scratch.iterdir()) == []


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> Path:
    """Put ``source`` in the exporter's place."""
    script = tmp_path / "child.py"
    script.write_text(source)
    monkeypatch.setattr(exporting, "CHILD", script)
    monkeypatch.setattr(exporting, "need_torch", lambda label: None)
    return write_program(tmp_path / "m.pt2")


def test_a_child_that_is_killed(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = child(tmp_path, monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ModelError, match="signal 9, perhaps for want of memory"):
        load(path)


def test_the_child_does_not_see_the_current_directory(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = child(tmp_path, monkeypatch, "import sys; sys.exit(repr(sys.path))")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    with pytest.raises(ModelError) as caught:
        load(path)
    listed = str(caught.value)
    assert f"'{tmp_path}'" not in listed
    assert "''" not in listed


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    """Ctrl-C in the parent alone: the child is gone and the temporary folder too."""
    started, scratch, script = tmp_path / "pid", tmp_path / "scratch", tmp_path / "child.py"
    scratch.mkdir()
    script.write_text(
        "import os, pathlib, time\n"
        f"half = pathlib.Path({str(tmp_path / 'half')!r})\n"
        "half.write_text(str(os.getpid()))\n"
        f"half.rename({str(started)!r})\n"
        "time.sleep(600)"
    )
    code = (
        "from pathlib import Path; from edgeopt.loaders import exporting, load\n"
        f"exporting.CHILD = Path({str(script)!r}); exporting.need_torch = lambda label: None\n"
        f"load({str(write_program(tmp_path / 'm.pt2'))!r})"
    )
    environment = {**os.environ, "TMPDIR": str(scratch)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    while not started.exists():
        assert parent.poll() is None
        time.sleep(0.02)
    number = int(started.read_text())
    parent.send_signal(signal.SIGINT)
    assert parent.wait(30) != 0
    assert list(scratch.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_shapes_reach_the_exported_graph(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    proto = model(nodes, [value("x", ["N", 3])], [value("y", ["N", 4])], {"w": W})
    source = write(tmp_path / "source.onnx", proto)
    path = child(tmp_path, monkeypatch, f"import shutil, sys\nshutil.copy({str(source)!r}, sys.argv[2])")
    loaded = load(path, shapes={"x": (1, 3)})
    assert [s.shape for s in (*loaded.inputs, *loaded.outputs)] == [(1, 3), (1, 4)]
    with pytest.raises(ModelError, match=r'm\.pt2 has no input "z"'):
        load(path, shapes={"z": (1, 3)})


def test_a_large_export_outlives_its_folder(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights beside the exported model are mapped, and stay readable when the folder is gone."""
    source = tmp_path / "source"
    write_external(source, "model.onnx.data")
    path = child(
        tmp_path,
        monkeypatch,
        "import shutil, sys, pathlib\n"
        f"shutil.copy({str(source / 'm.onnx')!r}, sys.argv[2])\n"
        f"shutil.copy({str(source / 'model.onnx.data')!r}, pathlib.Path(sys.argv[2]).parent)",
    )
    loaded = load(path)
    assert list(scratch.iterdir()) == []
    assert loaded.origin.files == (path,)
    np.testing.assert_array_equal(loaded.graph.initializers["w"].const_value.numpy(), dense_weight())


def test_the_archive_is_recognized_by_content(tmp_path: Path) -> None:
    assert sniff.identify(write_program(tmp_path / "m.onnx")) == "pt2"
    flat = tmp_path / "flat.bin"
    with zipfile.ZipFile(flat, "w") as archive:
        archive.writestr("serialized_exported_program.json", b"{}")
    assert sniff.identify(flat) == "pt2"
