"""A TorchScript archive is looked at before torch sees it: nothing planted in one runs, no size is believed."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest

from edgeopt.errors import ModelError
from edgeopt.loaders import exporting, load, sniff, torchscript_archive
from tests.unit.loaders.programs import Mark, saved
from tests.unit.loaders.scripts import CODE, Edit, code, members, network, tensor, text, write_script


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A refused file must not reach torch at all."""
    if "needs_torch" in request.keywords:
        return

    def reached(*args: object, **kwargs: object) -> None:
        raise AssertionError("torch was started")

    monkeypatch.setattr(exporting, "export", reached)


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(path, shapes={"x": (1, 3)})
    assert caught.value.exit_code == 3
    assert path.name in caught.value.message
    assert "\n" not in caught.value.message
    return str(caught.value)


def payloads(mark: Path) -> dict[str, Edit]:
    boom = pickle.dumps(Mark(mark), 2)
    weight = tensor("0", (3, 4), (4, 1), held=12)

    def setstate(content: dict[str, bytes]) -> None:
        body = f'  def __setstate__(self: __torch__.M, state: Tensor) -> NoneType:\n    torch.save([1], "{mark}")\n'
        content["code/__torch__.py"] = (CODE + body).encode()

    return {
        "pickle as data": lambda c: c.update({"data.pkl": boom}),
        "pickle as constants": lambda c: c.update({"constants.pkl": boom}),
        "pickle as traced inputs": lambda c: c.update({"traced_inputs.pkl": boom}),
        "pickle as a weight": lambda c: c.update({"data.pkl": network(boom[2:-1])}),
        "newer pickle": lambda c: c.update({"data.pkl": pickle.dumps(Mark(mark), 4)}),
        "registered extension": lambda c: c.update({"data.pkl": network(b"\x82\x01")}),
        "builtin": lambda c: c.update({"data.pkl": network(b"cbuiltins\neval\n(" + text("1") + b"tR")}),
        "compiled class": lambda c: c.update({"data.pkl": network(b"c__torch__.torch.classes.a\nB\n)\x81}b")}),
        "number of a part": lambda c: c.update({"data.pkl": network(weight + b"r\xff\xff\xff\x7f")}),
        "save": code(f'torch.save([1], "{mark}")'),
        "save as a method": code(f'(x).save("{mark}")'),
        "save while loading": setstate,
        "from_file": code(f'print(torch.from_file("{mark}", True, 100))'),
        "from_file by its long name": code(f'y = ops.aten.from_file("{mark}", True, 100)'),
        "another machine": code('y = rpc_async("a", x)'),
        "other operators": code("y = ops.mylibrary.run(x)"),
        "compiled class in code": code("y = __torch__.torch.classes.a.B.__new__(__torch__.torch.classes.a.B)"),
        "python": code("y = ^Planted(1)(x)"),
        "no code": lambda c: c.update({"code/__torch__.py": b"\x00\xff"}),
    }


PLANTED = sorted(payloads(Path("mark")))


@pytest.mark.parametrize("place", PLANTED)
def test_a_planted_payload_is_refused_and_does_not_run(tmp_path: Path, place: str) -> None:
    mark = tmp_path / "mark"
    message = refused(write_script(tmp_path / "m.pt", payloads(mark)[place]))
    assert "--trust-pickle" in message
    assert not mark.exists()


@pytest.mark.needs_torch
def test_the_payloads_are_real(tmp_path: Path) -> None:
    """Given to torch as they are, the code runs; the pickles do not, torch's own reader does not know them."""
    pytest.importorskip("torch")
    runs = {"save": True, "from_file": True, "pickle as data": False, "builtin": False}
    paths = {}
    for number, place in enumerate(runs):
        mark = tmp_path / f"mark{number}"
        paths[mark] = write_script(tmp_path / f"m{number}.pt", payloads(mark)[place])
    script = (
        "import sys, torch, contextlib\n"
        "for path in sys.argv[1:]:\n"
        "    with contextlib.suppress(Exception):\n"
        "        torch.jit.load(path)(torch.ones(1, 3))\n"
    )
    subprocess.run([sys.executable, "-c", script, *paths.values()], check=True, stderr=subprocess.DEVNULL)
    assert [mark.exists() for mark in paths] == list(runs.values())


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (tensor("0", (3, 4), (4, 1), held=1200), "which has 48 bytes"),
        (tensor("9", (3, 4), (4, 1), held=12), "which is missing"),
        (tensor("0", (3, 5), (5, 1), held=12), "in a storage of 12 elements"),
        (tensor("0", (3, 4), (4, 1), held=12, offset=1), "in a storage of 12 elements"),
        (tensor("0", (2**30, 4), (0, 2**30), held=12), "in a storage of 12 elements"),
        (tensor("../0", (3, 4), (4, 1), held=12), "does not write"),
        (tensor("0", (3, 4), (4,), held=12), "cannot be read"),
    ],
)
def test_tensors_that_their_bytes_do_not_carry(tmp_path: Path, weight: bytes, words: str) -> None:
    assert words in refused(write_script(tmp_path / "m.pt", lambda c: c.update({"data.pkl": network(weight)})))


def test_the_copy_holds_what_was_checked_and_no_more(tmp_path: Path) -> None:
    def more(content: dict[str, bytes]) -> None:
        content |= {"extra/notes": b"\x80", "bytecode.pkl": saved({}), "data/7": b"unused"}

    torchscript_archive.rewrite(write_script(tmp_path / "m.pt", more), tmp_path / "copy.pt")
    with zipfile.ZipFile(tmp_path / "copy.pt") as copy:
        names = {name.removeprefix("network/") for name in copy.namelist()}
        assert names == {"version", "byteorder", "code/__torch__.py", "data.pkl", "data/0", "constants.pkl"}


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "C:/evil"])
def test_member_names_that_leave_the_archive(tmp_path: Path, name: str) -> None:
    path = write_script(tmp_path / "m.pt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"")
    for trust in (False, True):
        with pytest.raises(ModelError, match="leave the archive's folder"):
            load(path, shapes={"x": (1, 3)}, trust_pickle=trust)


def test_bombs_twins_and_machine_code(tmp_path: Path) -> None:
    path = write_script(
        tmp_path / "m.pt", lambda c: c.update({"data/1": bytes(1 << 25)}), compression=zipfile.ZIP_DEFLATED
    )
    assert "unpacks from" in refused(path)
    path = write_script(tmp_path / "m.pt")
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("net/data.pkl", b"")
    assert "occurs twice" in refused(path)
    assert "machine code" in refused(write_script(tmp_path / "m.pt", lambda c: c.update({"extra/a.so": b"\x7fELF"})))
    assert "torch 1.3 and older" in refused(write_script(tmp_path / "m.pt", lambda c: c.update({"model.json": b"{}"})))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_archive(tmp_path: Path, share: float) -> None:
    path = write_script(tmp_path / "m.pt")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert "cut off or damaged" in refused(path)


def test_missing_and_damaged_members(tmp_path: Path) -> None:
    for name in ("data.pkl", "version"):
        assert name in refused(write_script(tmp_path / "m.pt", without(name)))
    assert "damaged TorchScript archive (data/0)" in refused(_flipped(write_script(tmp_path / "m.pt")))
    packed = write_script(tmp_path / "m.pt", compression=zipfile.ZIP_DEFLATED)
    assert "damaged TorchScript archive" in refused(_flipped(packed, b"net/code/__torch__.py"))
    assert "version" in refused(write_script(tmp_path / "m.pt", lambda c: c.update(version=b"three")))
    assert "big-endian" in refused(write_script(tmp_path / "m.pt", lambda c: c.update(byteorder=b"big")))
    deep = CODE.replace("x, weight", "(" * 500 + "x" + ")" * 500 + ", weight").encode()
    assert "code/__torch__.py" in refused(
        write_script(tmp_path / "m.pt", lambda c: c.update({"code/__torch__.py": deep}))
    )
    cut = members()["data.pkl"][:-4]
    assert "cannot be read" in refused(write_script(tmp_path / "m.pt", lambda c: c.update({"data.pkl": cut})))


def without(name: str) -> Edit:
    def edit(content: dict[str, bytes]) -> None:
        del content[name]

    return edit


def _flipped(path: Path, mark: bytes | None = None) -> Path:
    """A bit changed: in the weight, or behind the first ``mark``."""
    data = bytearray(path.read_bytes())
    at = data.index(members()["data/0"]) + 3 if mark is None else data.index(mark) + len(mark) + 20
    data[at] ^= 1
    path.write_bytes(data)
    return path


def test_the_archive_is_recognized_by_content(tmp_path: Path) -> None:
    assert sniff.identify(write_script(tmp_path / "m.onnx")) == "torchscript"
