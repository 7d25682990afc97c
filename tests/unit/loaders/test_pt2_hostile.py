"""A ``.pt2`` file is looked at before torch sees it: nothing planted in one ever runs."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest

from edgeopt.errors import ModelError
from edgeopt.loaders import exporting, load, pt2_archive, pt2_program
from tests.unit.loaders.programs import (
    PROGRAM,
    SAMPLES,
    WEIGHTS,
    Mark,
    Members,
    edit_json,
    guarded,
    members,
    payloads,
    saved,
    torch_2_7,
    write_program,
)

PLANTED = sorted(payloads(Path("mark")))


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
        load(path)
    assert caught.value.exit_code == 3
    assert path.name in caught.value.message
    assert "\n" not in caught.value.message
    return str(caught.value)


@pytest.mark.parametrize("place", PLANTED)
def test_a_planted_payload_is_refused_and_does_not_run(tmp_path: Path, place: str) -> None:
    mark = tmp_path / "mark"
    message = refused(write_program(tmp_path / "m.pt2", payloads(mark)[place]))
    assert "--trust-pickle" in message
    assert not mark.exists()


@pytest.mark.needs_torch
def test_the_payloads_are_real(tmp_path: Path) -> None:
    """Given to torch as they are, they do run: the tests above can fail."""
    pytest.importorskip("torch")
    places = ("sample inputs", "pickled weight", "opaque object", "symbolic size", "argument name")
    paths = {}
    for number, place in enumerate(places):
        mark = tmp_path / f"mark{number}"
        paths[mark] = write_program(tmp_path / f"m{number}.pt2", payloads(mark)[place])
    script = (
        "import sys, torch, contextlib\n"
        "for path in sys.argv[1:]:\n"
        "    with contextlib.suppress(Exception):\n"
        "        torch.export.load(path).run_decompositions()\n"
    )
    subprocess.run([sys.executable, "-c", script, *paths.values()], check=True, stderr=subprocess.DEVNULL)
    assert [mark.exists() for mark in paths] == [True] * len(places)


@pytest.mark.needs_torch
def test_a_pickle_that_slipped_through_would_not_run_either(tmp_path: Path) -> None:
    """The second line of defence: the child reads tensors and nothing else."""
    pytest.importorskip("torch")
    mark = tmp_path / "mark"
    path = write_program(tmp_path / "m.pt2", payloads(mark)["sample inputs"])
    options = {"program": str(path), "force_eval": False}
    with pytest.raises(ModelError, match="cannot be exported"):
        exporting.export("pt2", "m.pt2", tmp_path / "out.onnx", options, trust_pickle=False)
    assert not mark.exists()


def test_guards_are_left_out_of_the_copy(tmp_path: Path) -> None:
    path = write_program(tmp_path / "m.pt2", guarded(tmp_path / "mark"))
    pt2_archive.rewrite(path, tmp_path / "copy.pt2")
    with zipfile.ZipFile(tmp_path / "copy.pt2") as copy:
        copied = json.loads(copy.read(f"program/{PROGRAM}"))
        names = copy.namelist()
        assert copy.read(f"program/{SAMPLES}") == b""
    assert copied["guards_code"] == []
    assert all(node["metadata"] == {} for node in copied["graph_module"]["graph"]["nodes"])
    assert {n.removeprefix("program/") for n in names} == set(members())
    assert not (tmp_path / "mark").exists()


def test_sample_inputs_of_tensors_are_fine_and_left_out(tmp_path: Path) -> None:
    import collections

    samples = saved(((collections.OrderedDict(a=1), 2.0, None), {}))
    path = write_program(tmp_path / "m.pt2", lambda c: c.update({SAMPLES: samples}))
    pt2_archive.rewrite(path, tmp_path / "copy.pt2")
    assert zipfile.ZipFile(tmp_path / "copy.pt2").getinfo(f"program/{SAMPLES}").file_size == 0


def test_the_older_formats_are_pickled_and_said_so(tmp_path: Path) -> None:
    path, mark = tmp_path / "old.pt2", tmp_path / "mark"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in torch_2_7(mark).items():
            archive.writestr(name, data)
    message = refused(path)
    assert "torch 2.7 and older" in message
    assert "torch 2.9 or newer" in message
    message = refused(write_program(tmp_path / "m.pt2", payloads(mark)["weights of torch 2.8"]))
    assert "torch 2.8" in message
    assert not mark.exists()


def test_compiled_code_is_refused_even_when_trusted(tmp_path: Path) -> None:
    path = write_program(tmp_path / "m.pt2", lambda c: c.update({"data/aotinductor/model/m.so": b"\x7fELF"}))
    for trust in (False, True):
        with pytest.raises(ModelError, match="AOTInductor"):
            load(path, trust_pickle=trust)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "C:/evil", "a/./b", "a//b"])
def test_member_names_that_leave_the_archive(tmp_path: Path, name: str) -> None:
    path = write_program(tmp_path / "m.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"")
    for trust in (False, True):
        with pytest.raises(ModelError, match="leave the archive's folder"):
            load(path, trust_pickle=trust)


def test_a_member_that_occurs_twice(tmp_path: Path) -> None:
    path = write_program(tmp_path / "m.pt2")
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(f"net/{PROGRAM}", b"{}")
    assert "occurs twice" in refused(path)


def test_two_top_folders(tmp_path: Path) -> None:
    path = write_program(tmp_path / "m.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/extra/notes", b"")
    assert "more than one top folder" in refused(path)


def test_a_zip_bomb(tmp_path: Path) -> None:
    path = write_program(
        tmp_path / "m.pt2",
        lambda c: c.update({"data/weights/weight_9": bytes(1 << 25)}),
        compression=zipfile.ZIP_DEFLATED,
    )
    assert path.stat().st_size < 100_000
    assert "unpacks from" in refused(path)


def test_a_bomb_of_members_that_share_their_bytes(tmp_path: Path) -> None:
    """Each entry alone is modest; all of them together are not."""
    path = tmp_path / "m.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members().items():
            archive.writestr(f"net/{name}", data)
        archive.writestr("net/extra/0", b"ab" * 40_000 + bytes(range(256)) * 60)
        first = archive.getinfo("net/extra/0")
        for number in range(1, 1200):
            twin = zipfile.ZipInfo(f"net/extra/{number}")
            for field in ("compress_type", "header_offset", "compress_size", "file_size", "CRC"):
                setattr(twin, field, getattr(first, field))
            archive.filelist.append(twin)
            archive.NameToInfo[twin.filename] = twin
    assert "unpack to" in refused(path)


def test_an_encrypted_member(tmp_path: Path) -> None:
    path = write_program(tmp_path / "m.pt2")
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    assert "encrypted" in refused(path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_archive(tmp_path: Path, share: float) -> None:
    path = write_program(tmp_path / "m.pt2")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert "cut off or damaged" in refused(path)


def test_a_flipped_byte_in_a_weight(tmp_path: Path) -> None:
    path = write_program(tmp_path / "m.pt2")
    data = bytearray(path.read_bytes())
    data[data.index(members()["data/weights/weight_0"]) + 3] ^= 1
    path.write_bytes(data)
    assert "damaged torch.export archive (data/weights/weight_0)" in refused(path)


def test_missing_members(tmp_path: Path) -> None:
    def without(name: str) -> Path:
        return write_program(tmp_path / "m.pt2", lambda c: c.__delitem__(name) if name in c else None)

    assert "no program called model" in refused(without(PROGRAM))
    assert WEIGHTS in refused(without(WEIGHTS))
    assert "data/weights/weight_0" in refused(without("data/weights/weight_0"))
    assert "no JSON" in refused(write_program(tmp_path / "m.pt2", lambda c: c.update({PROGRAM: b"{"})))
    deep = b"[" * 100_000 + b"]" * 100_000
    assert "no JSON" in refused(write_program(tmp_path / "m.pt2", lambda c: c.update({PROGRAM: deep})))


def test_another_format_version_or_byte_order(tmp_path: Path) -> None:
    for name, data in (("archive_version", b"7"), ("byteorder", b"big")):
        assert name in refused(write_program(tmp_path / "m.pt2", lambda c, n=name, d=data: c.update({n: d})))  # type: ignore[misc]


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [{"as_int": 3}, {"as_int": 5}]},
        {"sizes": [{"as_int": 2**40}, {"as_int": 4}], "strides": [{"as_int": 0}, {"as_int": 1}]},
        {"sizes": [{"as_int": -3}, {"as_int": -4}]},
        {"storage_offset": {"as_int": 1}},
        {"storage_offset": {"as_int": -1}},
        {"strides": [{"as_int": 2**62}, {"as_int": 1}]},
        {"sizes": [{"as_expr": {"expr_str": "s0", "hint": None}}, {"as_int": 4}]},
        {"dtype": 99},
    ],
)
def test_shapes_that_the_bytes_do_not_carry(tmp_path: Path, change: dict[str, object]) -> None:
    def edit(content: Members) -> None:
        edit_json(content, WEIGHTS, lambda d: d["config"]["w"]["tensor_meta"].update(change))

    assert "its weight 'w'" in refused(write_program(tmp_path / "m.pt2", edit))


@pytest.mark.parametrize("member", ["../../weight_0", "weight_0/../x", "model.pt", "weight_x", ""])
def test_weight_members_with_other_names(tmp_path: Path, member: str) -> None:
    def edit(content: Members) -> None:
        edit_json(content, WEIGHTS, lambda d: d["config"]["w"].update(path_name=member))

    assert "is stored as" in refused(write_program(tmp_path / "m.pt2", edit))


EXPRESSIONS = (
    "s77",
    "2*s0 + 1",
    "((s53 - 1)//2) + 1",
    "Max(1, s0)",
    "Eq(Mod(s0, 4), 0)",
    "s0**2",
    "-u3 >= 2",
    "Symbol('s77', positive=True, integer=True)",
    "Add(FloorDiv(Add(Symbol('s0', integer=True), Integer(-1)), Integer(2)), Integer(1))",
    "Mul(Float('1.5', precision=53), Symbol('zuf0'))",
    "Pow(Symbol('s0', positive=True), Integer(2))",
    "PythonMod(s1, 3)",
)
EVIL_EXPRESSIONS = (
    "__import__('os').system('true')",
    "().__class__",
    "[s0 for s0 in s1]",
    "lambda: s0",
    "open",
    "Symbol('__import__(\"os\")')",
    "Integer('1')",
    "Max('s0', 1)",
    "Add(Symbol('s0'), \"exec('1')\")",
    "Symbol(Symbol('s0'))(s1)",
    "9**9**9",
    "Pow(Pow(Integer(9), Integer(9)), Integer(9))",
    "Pow(Symbol('s0'), Integer(10**9))",
    "LShift(Integer(1), Integer(10))",
    "f'{s0}'",
    "s0 if s1 else s2",
    "(s0 := 1)",
    "Symbol('s0', positive=__import__('os'))",
    "Symbol(**s0)",
    "99999999999999999999999",
    "(" * 3000 + "s0" + ")" * 3000,
    "s0" + "+s0" * 3000,
    "s0\0",
    "",
)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_sizes_that_torch_writes(text: str) -> None:
    assert pt2_program._expression(text) == text


@pytest.mark.parametrize("text", EVIL_EXPRESSIONS, ids=range(len(EVIL_EXPRESSIONS)))
def test_sizes_that_are_code(text: str) -> None:
    with pytest.raises(pt2_program.RefusedError, match="expression"):
        pt2_program._expression(text)


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.conv2d.default",
        "torch.ops.aten._native_batch_norm_legit_no_training.default",
        "torch.ops.aten.__or__.Tensor",
        "torch.ops.higher_order.cond",
        "_operator.getitem",
        "math.ceil",
        "torch.sym_max",
        "torch.ops.torchvision.nms.default",
    ],
)
def test_operators_that_torch_writes(target: str) -> None:
    assert pt2_program._operator(target) == target


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.ops.load_library",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.add.__class__",
        "torch.ops.__class__.aten.x",
        "torch.ops.import_module.x.y",
        "torch.hub.load",
        "torch.load",
        "torch.ops.aten.add.default.x",
        "torch.ops.aten.add.default\n",
        "_operator.methodcaller",
        "_operator.call",
        "math.factorial",
        "#triton",
        "builtins.eval",
        "",
    ],
)
def test_operators_that_reach_further(target: str) -> None:
    with pytest.raises(pt2_program.RefusedError, match="operator"):
        pt2_program._operator(target)


def test_unknown_text_is_refused_wherever_it_stands() -> None:
    for value in ({"new_field": "text"}, {"a": [{"b": "text"}]}, {"bad key": 1}, {"as_float": "nan()"}, "text"):
        with pytest.raises(pt2_program.RefusedError):
            pt2_program.clean_program(value)


def test_the_mark_leaves_its_mark(tmp_path: Path) -> None:
    import pickle

    pickle.loads(pickle.dumps(Mark(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()
