"""bench.pyz: the same bytes everywhere, runs with nothing around it, old syntax, standard library only."""

from __future__ import annotations

import ast
import io
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import runtime_bench

PACKAGE = Path(runtime_bench.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def test_same_bytes_under_other_umask_dates_order_and_place(tmp_path: Path) -> None:
    first = tmp_path / "a.pyz"
    runtime_bench.write_pyz(first)
    copy = tmp_path / "elsewhere"
    for source in reversed(SOURCES):
        place = copy / "runtime_bench" / source.relative_to(PACKAGE)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        os.utime(place, (86400, 86400))
        place.chmod(0o700)
    code = "import os; os.umask(0o077); import runtime_bench; runtime_bench.write_pyz('b.pyz')"
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONHASHSEED": "3", "TZ": "Pacific/Apia"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "b.pyz").read_bytes() == first.read_bytes()
    assert stat.S_IMODE(first.stat().st_mode) == stat.S_IMODE((tmp_path / "b.pyz").stat().st_mode) == 0o755


def test_a_pyz_writes_itself(tmp_path: Path) -> None:
    first, second = tmp_path / "a.pyz", tmp_path / "b.pyz"
    runtime_bench.write_pyz(first)
    code = "import sys; sys.path.insert(0, 'a.pyz'); import runtime_bench; runtime_bench.write_pyz('b.pyz')"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, cwd=tmp_path)
    assert second.read_bytes() == first.read_bytes()


def test_members() -> None:
    buffer = io.BytesIO()
    runtime_bench.write_pyz(buffer)
    assert buffer.getvalue().startswith(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer) as archive:
        infos = archive.infolist()
    names = [info.filename for info in infos]
    assert names == sorted(names)
    assert set(names) == {"__main__.py"} | {f"runtime_bench/{s.relative_to(PACKAGE).as_posix()}" for s in SOURCES}
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert {info.external_attr >> 16 for info in infos} == {stat.S_IFREG | 0o644}
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder.pyz").mkdir()
    with pytest.raises(OSError, match=r"folder\.pyz"):
        runtime_bench.write_pyz(tmp_path / "folder.pyz")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.pyz"]


def test_runs_in_a_bare_interpreter(tmp_path: Path) -> None:
    runtime_bench.write_pyz(tmp_path / "bench.pyz")
    command = [sys.executable, "-I", "-S", str(tmp_path / "bench.pyz"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.startswith("usage: bench.pyz")
    assert done.stderr == ""


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_python_38_syntax_and_standard_library(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 8))
    assert text.isascii()
    runtimes = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            top = module.partition(".")[0]
            if top in ("numpy", "onnxruntime", "openvino"):
                runtimes.add(top)
                assert node.col_offset > 0, f"{source.name} imports {top} at module level"
            else:
                assert top == "runtime_bench" or top in sys.stdlib_module_names
    assert not runtimes or source.name in ("onnxruntime.py", "openvino.py", "arrays.py", "golden.py")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_builtin_generics_only_in_annotations(source: Path) -> None:
    """``list[int]`` is an error in 3.8 wherever it is evaluated; the grammar does not show it."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert future
    assert future[0].names[0].name == "annotations"
    annotations = {
        id(part)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if isinstance(getattr(node, field, None), ast.expr)
        for part in ast.walk(getattr(node, field))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and id(node) not in annotations:
            assert node.value.id not in ("list", "dict", "tuple", "set", "type"), f"line {node.lineno}"


def test_importing_the_package_loads_no_runtime() -> None:
    code = "import sys, runtime_bench, runtime_bench.cli; runtime_bench.measure, runtime_bench.verify_bundle; "
    code += "print(sorted({'numpy', 'onnxruntime', 'edgeopt'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "[]"


def test_public_names() -> None:
    assert all(callable(getattr(runtime_bench, name)) for name in runtime_bench.__all__ if name != "EFFORTS")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = runtime_bench.nothing  # type: ignore[attr-defined]
