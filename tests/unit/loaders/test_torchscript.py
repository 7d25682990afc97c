"""TorchScript networks: the inputs that they do not tell, states, branches, shared weights, and a real file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt.errors import ModelError
from edgeopt.loaders import default_name, load, parse_shape
from edgeopt.loaders.input_shape import InputShape
from tests.unit.loaders.files import conv_model, run, write
from tests.unit.loaders.programs import W
from tests.unit.loaders.scripts import described, exported, large, noise, write_script

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch
nn: Any = torch.nn
jit: Any = torch.jit


def test_an_archive_through_the_front_door(tmp_path: Path) -> None:
    path = write_script(tmp_path / "net (1) ü.pt")
    before = path.read_bytes()
    x = noise(5, 3)
    for trust in (False, True):
        loaded = load(path, shapes=dict([parse_shape("x=Nx3")]), trust_pickle=trust)
        assert [str(s) for s in (*loaded.inputs, *loaded.outputs)] == ["x: float32[N, 3]", "output: float32[N, 4]"]
        assert loaded.origin.format == "torchscript"
        assert loaded.origin.files == (path,)
        assert loaded.origin.notes == ()
        np.testing.assert_allclose(run(loaded.ir, {"x": x})[0], np.maximum(x @ W, 0), rtol=1e-5, atol=1e-5)
    assert path.read_bytes() == before
    with pytest.raises(ModelError) as caught:
        exported(tmp_path, jit.load(path))
    assert "does not tell the shapes of its inputs: x: Tensor." in caught.value.message
    assert "--shape x=1x3x224x224" in str(caught.value.remedy)


class Tied(nn.Module):
    """A table that looks up and, transposed, gives the scores; a layer used twice; a dict as the result."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.twice = nn.Linear(32, 32)
        self.scores = nn.Linear(32, 64, bias=False)
        self.scores.weight = self.table.weight
        self.register_buffer("gain", torch.full((32,), 2.0))

    def forward(self, ids):  # what has no annotation is a Tensor
        hidden = self.twice(torch.relu(self.twice(self.table(ids)))) * self.gain
        return {"scores": self.scores(hidden), "hidden": hidden}


class Small(nn.Module):
    """What freezing folds, and a branch that it cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        if x.size(2) > 8:
            y = y * 2
        return self.drop(y).mean((2, 3))


def test_a_frozen_network_has_no_mode_and_loads(tmp_path: Path) -> None:
    """torch.jit.freeze takes the attribute ``training`` away, with the weights."""
    torch.manual_seed(0)
    frozen = jit.freeze(jit.script(Small().eval()))
    assert not hasattr(frozen, "training")
    for size in (8, 10):
        model, facts = exported(tmp_path, frozen, f"x=1x3x{size}x{size}")
        x = noise(1, 3, size, size)
        np.testing.assert_allclose(run(model, {"x": x})[0], frozen(torch.from_numpy(x)).numpy(), atol=1e-6)
        assert facts["notes"] == []
    with pytest.raises(ModelError) as caught:  # a mode that freezing wrote into the network
        exported(tmp_path, jit.freeze(scripted(TRAINS)), "x=1x64")
    assert "captured in training mode: 1 live Dropout" in caught.value.message


TRAINS = """
def forward(self, x: Tensor):
    return torch.dropout(x, 0.5, True)
"""


@pytest.mark.parametrize("traced", [False, True])
def test_weights_that_layers_share_are_stored_once(tmp_path: Path, traced: bool) -> None:
    """IN12."""
    torch.manual_seed(0)
    net = Tied().eval()
    ids = torch.arange(10).reshape(2, 5)
    module = jit.trace(net, ids, strict=False) if traced else jit.script(net)
    model, _ = exported(tmp_path, module, *([] if traced else ["ids=2x5:int64"]))
    assert described(model) == ["ids: int64[2, 5]", "scores: float32[2, 5, 64]", "hidden: float32[2, 5, 32]"]
    assert sorted(large(model, 4096).values()) == [(32, 32), (64, 32)]
    with torch.no_grad():
        wanted = net(ids)
    for got, name in zip(run(model, {"ids": ids.numpy()}), ("scores", "hidden")):
        np.testing.assert_allclose(got, wanted[name].numpy(), rtol=1e-4, atol=1e-5)


def scripted(source: str, **attributes: Any) -> Any:
    """A script module with ``forward`` given as TorchScript and tensors as attributes (``b_`` a buffer)."""

    class Made(jit.ScriptModule):
        def __init__(self) -> None:
            super().__init__()
            for name, value in attributes.items():
                if name.startswith("b_"):
                    self.register_buffer(name, value)
                else:
                    setattr(self, name, jit.Attribute(value, type(value)) if not hasattr(value, "dim") else value)

    made = Made()
    made.define(source)
    return made.eval()


BRANCH = """
def forward(self, x: Tensor, y: Optional[Tensor]=None, k: int=2):
    if bool(x.sum() > 0):
        z = x * k
    else:
        z = x - k
    if y is not None:
        z = z + y
    return z, [z + 1, z + 2]
"""


def test_branches_stay_and_optional_arguments_may_be_left_out(tmp_path: Path) -> None:
    model, facts = exported(tmp_path, scripted(BRANCH), "x=2x3")
    assert described(model)[0] == "x: float32[2, 3]"
    assert len(described(model)) == 4
    for x in (np.ones((2, 3), np.float32), -np.ones((2, 3), np.float32)):
        np.testing.assert_allclose(run(model, {"x": x})[2], (x * 2 if x.sum() > 0 else x - 2) + 2)
    assert facts["notes"] == []
    model, facts = exported(tmp_path, scripted(BRANCH), "x=2x3", "y=2x3", "k=5")
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(run(model, {"x": x, "y": x})[0], x * 6)
    assert facts["notes"] == ["the argument k is fixed at 5"]


def test_what_cannot_be_known_is_asked_for_by_name(tmp_path: Path) -> None:
    module = scripted("def forward(self, ids: Tensor, n: int, mask: Tensor):\n    return ids * n + mask\n")
    with pytest.raises(ModelError) as caught:
        exported(tmp_path, module, "ids=2")
    assert "n: int, mask: Tensor" in caught.value.message
    assert "--shape n=VALUE" in str(caught.value.remedy)
    with pytest.raises(ModelError, match='no input "idz".* Did you mean "ids"'):
        exported(tmp_path, module, "idz=2")
    for bad in ("n=2x2", "n="):
        with pytest.raises(ModelError, match="does not tell"):
            exported(tmp_path, module, "ids=2", "mask=2", bad)
    with pytest.raises(ModelError, match=r"no tensors: f: float"):
        exported(tmp_path, scripted("def forward(self, x: Tensor, f: float):\n    return x * f\n"), "x=2")
    with pytest.raises(ModelError, match="returns a int"):
        exported(tmp_path, scripted("def forward(self, x: Tensor):\n    return x, 3\n"), "x=2")


def test_a_type_that_does_not_fit_is_told_in_the_words_of_torch(tmp_path: Path) -> None:
    net = jit.script(nn.Embedding(8, 4).eval())
    with pytest.raises(ModelError, match=r"cannot be run with input \(1, 3\) float32: .*Long") as caught:
        exported(tmp_path, net, "input=1x3")
    assert ":int64" in str(caught.value.remedy)
    model, _ = exported(tmp_path, net, "input=Nx3:int64")
    assert described(model) == ["input: int64[N, 3]", "output: float32[N, 3, 4]"]


def test_a_size_is_open_only_when_it_truly_is(tmp_path: Path) -> None:
    """DY01: the batch of a traced network may be a constant in a reshape."""
    net = scripted("def forward(self, x: Tensor):\n    return x.reshape(x.size(0), -1), x.sum(2)\n")
    model, _ = exported(tmp_path, net, "x=Nx3xT")
    assert described(model) == ["x: float32[N, 3, T]", "output_0: float32[N, output_0_1]", "output_1: float32[N, 3]"]
    x = noise(4, 3, 5)
    np.testing.assert_allclose(run(model, {"x": x})[1], x.sum(2), rtol=1e-4, atol=1e-5)
    for source in ("x.reshape(2, 8)", "x + torch.ones([2, 8])"):
        with pytest.raises(ModelError, match="cannot be open"):
            exported(tmp_path, scripted(f"def forward(self, x: Tensor):\n    return {source}\n"), "x=Nx8")


STATE = """
def forward(self, x: Tensor):
    if len(self.past) == 0:
        self.past = torch.zeros([x.size(0), 4])
    self.b_sum.mul_(0.5).add_(x)
    self.past = torch.tanh(self.past + x)
    return self.past * 2 + self.b_sum
"""


def test_a_state_becomes_inputs_and_outputs(tmp_path: Path) -> None:
    """One tensor that is replaced and first made in the call, and one that is changed in place."""
    module = scripted(STATE, past=torch.zeros(0), b_sum=torch.zeros(1, 4))
    model, facts = exported(tmp_path, module, "x=1x4")
    names = [one.split(":")[0] for one in described(model)]
    assert names == ["x", "past", "b_sum", "output", "next_past", "next_b_sum"]
    assert "next_past goes to past" in facts["notes"][0]
    fresh = jit.load(tmp_path / "net.pt")
    past = total = np.zeros((1, 4), np.float32)
    for step in range(10):
        x = noise(1, 4, seed=step)
        with torch.no_grad():
            wanted = fresh(torch.from_numpy(x)).numpy()
        got, past, total = run(model, {"x": x, "past": past, "b_sum": total})
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    by_batch = STATE.replace("    self.b_sum.mul_(0.5).add_(x)\n", "").replace(" + self.b_sum", "")
    with pytest.raises(ModelError, match="cannot stay open"):
        exported(tmp_path, scripted(by_batch, past=torch.zeros(0)), "x=Nx4")


def test_a_state_that_zeros_or_tensors_cannot_carry_is_refused(tmp_path: Path) -> None:
    source = "def forward(self, x: Tensor):\n    self.b_h.add_(x)\n    return self.b_h * 2\n"
    started = scripted(source, b_h=torch.ones(1, 4))
    with pytest.raises(ModelError, match=r"keeps a state \(b_h\); started from zeros its export differs"):
        exported(tmp_path, started, "x=1x4")
    counter = scripted("def forward(self, x: Tensor):\n    self.n = self.n + 1\n    return x * self.n\n", n=0)
    with pytest.raises(ModelError, match=r"keeps a number between calls \(n\)"):
        exported(tmp_path, counter, "x=1x4")


def test_the_spelling_of_types_and_open_sizes(tmp_path: Path) -> None:
    name, shape = parse_shape("ids=1xS:int64")
    assert name == "ids"
    assert shape == (1, 2)
    assert isinstance(shape, InputShape)
    assert (shape.dtype, shape.open) == ("int64", {1: "S"})
    assert not isinstance(parse_shape("x=1x2")[1], InputShape)
    assert parse_shape("s=:int64")[1] == ()
    path = write(tmp_path / "m.onnx", conv_model())
    assert load(path, shapes=dict([parse_shape("x=1x3x8x8:float32")])).inputs[0].shape == (1, 3, 8, 8)
    with pytest.raises(ModelError, match="has the type float32, not int64"):
        load(path, shapes=dict([parse_shape("x=1x3x8x8:int64")]))


def test_weights_belong_to_a_factory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="brings its own weights"):
        load(write_script(tmp_path / "m.pt"), weights=tmp_path / "w.pth")
    assert default_name(tmp_path / "m.pt") == "m"


SILERO = Path.home() / ".cache" / "edgeopt" / "zoo" / "models" / "silero-vad-torchscript" / "model.pt"


@pytest.mark.skipif(not SILERO.is_file(), reason="scripts/zoo fetches it")
def test_silero_with_its_state(tmp_path: Path) -> None:
    """Speech-like sound in chunks: the export gives what the script module gives, chunk after chunk."""
    loaded = load(SILERO, shapes=dict(map(parse_shape, ("x=1x512", "sr=16000"))))
    assert [s.name for s in (*loaded.inputs, *loaded.outputs)] == [
        "x",
        "context",
        "state",
        "output",
        "next_context",
        "next_state",
    ]
    module = jit.load(SILERO)
    seconds = np.arange(512 * 40) / 16000
    voice = sum(np.sin(2 * np.pi * 120 * h * seconds) / h for h in range(1, 20)) * (np.sin(2 * np.pi * 3 * seconds) > 0)
    sound = (0.1 * voice + 0.01 * np.random.default_rng(0).normal(size=seconds.size)).astype(np.float32)
    context, state = np.zeros((1, 64), np.float32), np.zeros((2, 1, 128), np.float32)
    for chunk in sound.reshape(-1, 1, 512):
        with torch.no_grad():
            wanted = float(module(torch.from_numpy(chunk), 16000))
        got, context, state = run(loaded.ir, {"x": chunk, "context": context, "state": state})
        assert abs(float(got[0, 0]) - wanted) < 1e-4
