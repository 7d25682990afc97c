"""Builds that are killed and resumed give what an uninterrupted one gives, and do not do again what was done."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt import loaders
from edgeopt.budget import Budget
from edgeopt.bundle import Bundle, read_diary
from edgeopt.errors import QualityError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, digest
from edgeopt.pipeline import Request, build, data, journal, keys, silent, walk
from edgeopt.pipeline.journal import Journal, place_of
from tests.short_sets import NET, short_sets
from tests.unit.pipeline.builds import floored


class Killed(BaseException):
    """Stands for SIGKILL: nothing is cleaned up after it."""


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> Request:
    return floored(tmp_path_factory.mktemp("resumed"))


class Work:
    """Counts what a build does: calls of the runtime, and entries that it keeps."""

    def __init__(self) -> None:
        self.runs = self.kept = 0


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, killed_after: int | None = None) -> Iterator[Work]:
    """Count, and kill the build once it has kept so many entries."""
    work = Work()
    run, keep = Interpreter.run, Journal.keep

    def running(self: Interpreter, feeds: Any) -> Any:
        work.runs += 1
        return run(self, feeds)

    def keeping(self: Journal, kind: str, key: object, value: object) -> None:
        keep(self, kind, key, value)
        work.kept += 1
        if work.kept == killed_after:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Interpreter, "run", running)
        patch.setattr(Journal, "keep", keeping)
        if killed_after is not None:
            patch.setattr(journal, "_remove", lambda folder: None)
        yield work


def kill(request: Request, monkeypatch: pytest.MonkeyPatch, after: int) -> Work:
    with counted(monkeypatch, after) as work, pytest.raises(Killed):
        build(request)
    assert not request.out.exists()
    assert place_of(request.out, request.work).is_dir()
    return work


def said(found: Bundle) -> tuple[object, ...]:
    """What must not depend on a kill: identity, lock, and the diary but for times."""
    rows = [
        dataclasses.replace(r, seconds=0.0, points=tuple(dataclasses.replace(p, latency_ms=None) for p in r.points))
        for r in read_diary(found.root)
    ]
    return found.manifest["identity"], (found.root / "decisions.lock").read_bytes(), rows


@pytest.fixture(scope="module")
def whole(request_: Request, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Work]:
    with pytest.MonkeyPatch.context() as patch, counted(patch) as work:
        found = build(dataclasses.replace(request_, out=tmp_path_factory.mktemp("whole") / "out"))
    return found, work


@pytest.mark.parametrize("share", [0.0, 0.45, 0.8, 1.0])
def test_a_killed_build_ends_as_an_uninterrupted_one(
    share: float, request_: Request, whole: tuple[Bundle, Work], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, all_of_it = whole
    request = dataclasses.replace(request_, out=tmp_path / "out")
    first = kill(request, monkeypatch, 1 + round(share * (all_of_it.kept - 1)))
    with counted(monkeypatch) as second:
        found = build(dataclasses.replace(request, resume=True))
    assert said(found) == said(reference)
    assert first.kept + second.kept == all_of_it.kept  # nothing that was kept was made again
    assert second.runs <= all_of_it.runs
    if share > 0.5:
        assert second.runs < all_of_it.runs - 0.5 * first.runs
    if share == 1.0:
        assert second.runs < 0.1 * all_of_it.runs
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_build_killed_twice_and_one_that_follows_a_lock(
    request_: Request, whole: tuple[Bundle, Work], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, _ = whole
    request = dataclasses.replace(request_, out=tmp_path / "out", work=tmp_path / "work", locked=reference.root)
    kill(request, monkeypatch, 15)
    kill(dataclasses.replace(request, resume=True), monkeypatch, 3)
    found = build(dataclasses.replace(request, resume=True))
    assert said(found)[:2] == said(reference)[:2]
    assert list((tmp_path / "work").iterdir()) == []


def test_a_step_that_does_not_come_out_as_it_was_is_tried_anew(
    request_: Request, whole: tuple[Bundle, Work], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, all_of_it = whole
    request = dataclasses.replace(request_, out=tmp_path / "out")
    kill(request, monkeypatch, all_of_it.kept)
    recall, lied = Journal.recall, []

    def lying(self: Journal, kind: str, key: object, missing: object = None) -> Any:
        found = recall(self, kind, key, missing)
        if isinstance(found, walk.Noted) and found.result.status == "kept" and found.result.step.kind == "quantize":
            lied.append(found.result.step.name)
            return dataclasses.replace(found, state="of something else")
        return found

    monkeypatch.setattr(Journal, "recall", lying)
    assert said(build(dataclasses.replace(request, resume=True))) == said(reference)
    assert "quantize-int8" in lied


def test_entries_of_other_limits_decide_nothing_and_damaged_ones_are_made_again(
    request_: Request, whole: tuple[Bundle, Work], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, all_of_it = whole
    request = dataclasses.replace(request_, out=tmp_path / "out")
    kill(dataclasses.replace(request, budget=Budget(min_sqnr_db=15.0)), monkeypatch, 40)
    for number, path in enumerate(sorted(place_of(request.out, None).glob("*.entry"))):
        if number % 3 == 0:
            path.write_bytes(path.read_bytes()[:-1] + b"x")
    with counted(monkeypatch) as work:
        found = build(dataclasses.replace(request, resume=True))
    assert said(found) == said(reference)
    assert work.runs < all_of_it.runs  # statistics do not follow from limits


def test_a_build_that_is_refused_keeps_its_journal_with_resume_alone(request_: Request, tmp_path: Path) -> None:
    request = dataclasses.replace(
        request_, out=tmp_path / "out", quantize="static", budget=Budget(min_sqnr_db=90.0), max_float_macs=0.01
    )
    with pytest.raises(QualityError):
        build(request)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(QualityError):
        build(dataclasses.replace(request, resume=True))
    place = place_of(request.out, None)
    assert len(list(place.glob("*.entry"))) > 20
    build(dataclasses.replace(request, resume=True, budget=Budget()))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def loaded(path: Path = NET) -> Model:
    return loaders.load(path)


def test_every_key_covers_code_releases_processor_model_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calib, judge = short_sets(tmp_path / "sets")
    model = loaded()
    sets = data.prepare(model, calib=calib, evaluate=judge)
    plain = keys.base(model, sets)
    assert plain == keys.base(loaded(), data.prepare(loaded(), calib=calib, evaluate=judge))
    others = [keys.base(model, data.prepare(model, calib=calib, evaluate=None))]
    machine = dataclasses.replace(keys.host.probe(), isa=("avx",))
    changes = [(keys, "_code", lambda: "x"), (keys, "_releases", dict), (keys.host, "probe", lambda: machine)]
    for owner, name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            others.append(keys.base(model, sets))
    others.append(keys.base(model, dataclasses.replace(sets, held_out=True)))
    with np.load(tmp_path / "sets" / "fashion-mnist-calib.npz") as arrays:
        values = {key: arrays[key].copy() for key in arrays.files}
    key = next(k for k, v in values.items() if v.ndim == 4 or v.ndim == 3)
    values[key].reshape(-1)[5] ^= 1
    np.savez(tmp_path / "sets" / "fashion-mnist-calib.npz", **values)
    others.append(keys.base(model, data.prepare(model, calib=calib, evaluate=judge)))
    changed = model.clone()
    weight = next(v for v in changed.graph.initializers.values() if v.const_value.size > 1000)
    array = weight.const_value.numpy().copy()
    array.reshape(-1)[-1] += 1
    weight.const_value = _tensor(array, weight.name)
    others.append(keys.base(changed, sets))
    assert len({plain, *others}) == 1 + len(others)


def _tensor(array: np.ndarray, name: str) -> Any:
    import onnx_ir as ir

    return ir.Tensor(array, name=name)


def test_samples_that_code_makes_are_covered(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(
        "import numpy as np, pathlib\n"
        "def samples():\n"
        "    level = float((pathlib.Path(__file__).parent / 'level.txt').read_text())\n"
        "    for index in range(12):\n"
        "        yield {'INPUT': np.full((1, 1, 28, 28), level if index == 7 else 0.0, np.float32)}\n"
    )
    model = loaded()
    name = model.inputs[0].name
    shape = tuple(d if isinstance(d, int) else 1 for d in model.inputs[0].shape)
    text = (tmp_path / "made.py").read_text().replace("INPUT", name).replace("(1, 1, 28, 28)", repr(shape))
    (tmp_path / "made.py").write_text(text)
    (tmp_path / "set.toml").write_text(
        'schema = "edgeopt.set/1"\nname = "made"\nkind = "python"\nfactory = "made:samples"\ncount = 12\n'
    )
    found = set()
    for level in ("0.25", "0.5"):
        (tmp_path / "level.txt").write_text(level)
        sets = data.prepare(model, calib=str(tmp_path / "set.toml"), evaluate=None)
        found.add(keys.base(model, sets))
    assert len(found) == 2
    request = Request(model=NET, target="raspberry-pi-5", out=tmp_path / "out")
    for resume in (False, True):  # all samples are read once more only for one who asks for it
        with keys.journal_of(dataclasses.replace(request, resume=resume), model, sets, silent) as notes:
            assert (notes.folder is not None) == resume


def test_the_digest_of_a_model_follows_every_tensor_and_no_object(tmp_path: Path) -> None:
    model = loaded()
    assert digest(model) == digest(loaded()) == digest(model.clone())
    shutil.copy(NET, tmp_path / "net.onnx")
    assert digest(loaded(tmp_path / "net.onnx")) == digest(model)
    seen = {digest(model)}
    for name, value in model.graph.initializers.items():
        if not value.const_value.size:
            continue
        changed = model.clone()
        array = value.const_value.numpy().copy()
        array.reshape(-1)[0] += 1
        changed.graph.initializers[name].const_value = _tensor(array, name)
        seen.add(digest(changed))
    assert len(seen) == 1 + len(model.graph.initializers)
