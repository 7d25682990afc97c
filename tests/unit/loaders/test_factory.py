"""``package.module:function``: the contract of the function, its weights, and where it is looked for."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt.errors import ModelError, ToolchainError
from edgeopt.loaders import default_name, exporting, factory, load, parse_shape
from tests.unit.loaders.files import conv_model, run, write
from tests.unit.loaders.programs import Mark, saved
from tests.unit.loaders.scripts import large

NETS = """
import torch
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.hidden = nn.Linear(32, 32)
        self.scores = nn.Linear(32, 64, bias=False)
        self.scores.weight = self.table.weight
        self.drop = nn.Dropout(0.5)
        self.norm = nn.LayerNorm(32)
        self.register_buffer("gain", torch.full((32,), 2.0))

    def forward(self, ids, scale=None):
        hidden = self.norm(self.drop(torch.relu(self.hidden(self.table(ids))))) * self.gain
        return {"scores": self.scores(hidden), "hidden": hidden}

def tied():
    return Tied()

def batched():
    return {
        "module": Tied(),
        "example": torch.zeros(2, 5, dtype=torch.int64),
        "dynamic": {"ids": {0: torch.export.Dim("batch")}},
    }

class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x

def branch():
    return Branch(), (torch.ones(2, 3),)

def traced():
    return {"module": Branch(), "example": {"x": torch.ones(2, 3)}, "trace": True}

def failing():
    raise ValueError("no data folder")

number = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in the current folder."""
    folder = tmp_path / "work"
    (folder / "mynets").mkdir(parents=True)
    (folder / "mynets" / "__init__.py").write_text("")
    (folder / "mynets" / "made.py").write_text(NETS)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "mynets"]:
        del sys.modules[name]


def test_what_is_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("nets:make", "a.b_c.d:make", "_a:_b"):
        assert factory.is_factory(text)
        assert factory.is_factory(Path(text))
    for text in ("nets", "a/b:make", "nets:make.x", "C:\\net.onnx", "nets:", ":make", "1a:b", "net.onnx", "a..b:c"):
        assert not factory.is_factory(text)
    write(tmp_path / "nets:make", conv_model())
    assert load("nets:make").origin.format == "onnx"
    assert default_name("a.b:make") == "make"
    assert default_name("a.b:make", tmp_path / "best.v2.pth") == "best.v2"


def test_without_torch_the_pip_line_is_told(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="mynets.made:tied needs torch"):
        load("mynets.made:tied")


def test_unsafe_weights_reach_neither_the_code_nor_torch(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*args: object, **kwargs: object) -> None:
        raise AssertionError("torch was started")

    monkeypatch.setattr(exporting, "export", reached)
    mark = package / "mark"
    (package / "w.pth").write_bytes(saved({"w": Mark(mark)}))
    with pytest.raises(ModelError, match=r"w.pth is refused: .* posix.system"):
        load("mynets.made:tied", weights=package / "w.pth")
    assert not mark.exists()


@pytest.mark.needs_torch
def test_a_network_with_weights_through_the_front_door(package: Path) -> None:
    """IN12: the table is stored once; the digest covers source and weights."""
    torch = pytest.importorskip("torch")
    from tests.unit.loaders.test_weights import entry, safetensors

    sys.path.insert(0, str(package))
    import mynets.made

    net = mynets.made.tied().eval()
    state, header, data = net.state_dict(), {}, b""
    state.pop("scores.weight")
    for name, tensor in state.items():
        header[name] = entry("F32", list(tensor.shape), len(data), len(data) + tensor.nbytes)
        data += tensor.numpy().tobytes()
    path = safetensors(package / "best.safetensors", header, data)
    loaded = load("mynets.made:tied", weights=path, shapes=dict([parse_shape("ids=BxS:int64")]))
    assert [str(s) for s in (*loaded.inputs, *loaded.outputs)] == [
        "ids: int64[B, S]",
        "scores: float32[B, S, 64]",
        "hidden: float32[B, S, 32]",
    ]
    assert sorted(large(loaded.ir, 4096).values()) == [(32, 32), (64, 32)]
    ids = torch.arange(12).reshape(3, 4)
    with torch.no_grad():
        wanted = net(ids)
    np.testing.assert_allclose(run(loaded.ir, {"ids": ids.numpy()})[0], wanted["scores"].numpy(), rtol=1e-3, atol=1e-4)
    source = package / "mynets" / "made.py"
    assert loaded.origin.format == "factory"
    assert [f.resolve() for f in loaded.origin.files] == [source.resolve(), path.resolve()]
    digests = "".join(hashlib.sha256(f.read_bytes()).hexdigest() for f in (source, path))
    assert loaded.origin.sha256() == hashlib.sha256(digests.encode()).hexdigest()


def made_here(folder: Path, name: str, *shapes: str, weights: Path | None = None) -> tuple[Any, dict[str, Any]]:
    """What the loader's child process makes, made in this one."""
    from edgeopt.loaders import _export_factory, input_shape
    from edgeopt.loaders.pt2 import read_export

    facts = _export_factory.main(
        str(folder / "net.onnx"),
        factory=name,
        weights=None if weights is None else str(weights),
        kind="torch",
        trust_pickle=False,
        shapes=input_shape.as_json(dict(map(parse_shape, shapes))),
        force_eval=False,
        label=name,
    )
    model = read_export(folder / "net.onnx", name, {})
    factory.name_dims(model, facts["symbols"])
    return model, facts


@pytest.mark.needs_torch
def test_the_contract(package: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.unit.loaders.scripts import described

    model, facts = made_here(package, "mynets.made:batched")
    assert described(model)[:2] == ["ids: int64[batch, 5]", "scores: float32[batch, 5, 64]"]
    assert facts["notes"] == []
    model, _ = made_here(package, "mynets.made:batched", "ids=3x7")
    assert described(model)[0] == "ids: int64[3, 7]"
    model, facts = made_here(package, "mynets.made:traced")
    assert described(model) == ["x: float32[2, 3]", "output: float32[2, 3]"]
    assert "branches are taken" in facts["notes"][0]
    with pytest.raises(ModelError, match="torch.export cannot capture mynets.made:branch") as caught:
        made_here(package, "mynets.made:branch")
    assert '"trace": True' in str(caught.value.remedy)
    torch.save({"table.weight": torch.zeros(64, 32)}, package / "w.pth")
    with pytest.raises(ModelError, match=r"w.pth does not fit .* 5 weights are missing \(gain, hidden.weight"):
        made_here(package, "mynets.made:tied", "ids=1x2:int64", weights=package / "w.pth")


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mynets.made:tied", "does not tell its inputs: ids"),
        ("mynets.made:failing", "failed: ValueError: no data folder .*made.py, line"),
        ("mynets.made:number", "has no function number"),
        ("mynets.made:teid", 'has no function teid. Did you mean "tied"'),
        ("mynets.other:make", "there is no module mynets.other"),
        ("nosuchpackage:make", "there is no module nosuchpackage"),
        ("mynets.broken:make", "failed: SyntaxError: .*broken.py, line 1"),
        ("mynets.needs:make", "failed: ModuleNotFoundError: No module named 'nosuchlibrary'"),
    ],
)
def test_what_is_wrong_with_a_factory(package: Path, name: str, words: str) -> None:
    pytest.importorskip("torch")
    (package / "mynets" / "broken.py").write_text("def make(:\n")
    (package / "mynets" / "needs.py").write_text("import nosuchlibrary\n")
    with pytest.raises(ModelError, match=words) as caught:
        made_here(package, name)
    assert "\n" not in caught.value.message


@pytest.mark.needs_torch
def test_results_that_are_not_in_the_contract() -> None:
    torch = pytest.importorskip("torch")
    from edgeopt.loaders._export_factory import take

    net = torch.nn.Linear(3, 4)
    for given, words in (
        (3, "returns a int"),
        ({"modul": net}, 'unknown key "modul". Did you mean "module"'),
        ((net, (torch.ones(1, 3),) * 2), "2 example inputs, forward takes 1"),
        ((net, {}), "does not tell its inputs: input"),
    ):
        with pytest.raises(ModelError, match=words):
            take(given, {}, "a:b")
    wrong = {"inptu": {"sizes": [1, 3], "dtype": None, "open": []}}
    with pytest.raises(ModelError, match='no input "inptu".* Did you mean "input"'):
        take(net, wrong, "a:b")
    for given in ((net, torch.ones(1, 3)), (net, (torch.ones(1, 3),)), (net, {"input": torch.ones(1, 3)})):
        assert list(take(given, {}, "a:b").arguments) == ["input"]
