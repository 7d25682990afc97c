"""verify: a good bundle, the wrong runtime, wrong outputs."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtime_bench
from runtime_bench import golden, manifest, process, verify
from runtime_bench.machine import environment, isa

Bundle = Any


def refused(bundle: Bundle) -> tuple[int, str]:
    with pytest.raises(runtime_bench.VerifyFailure) as caught:
        runtime_bench.verify_bundle(bundle.root)
    assert "\n" not in caught.value.message
    return caught.value.code, caught.value.message


def check(result: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in result["checks"] if c["name"] == name)


def test_good_bundle(bundle: Bundle) -> None:
    told: list[str] = []
    result = runtime_bench.verify_bundle(bundle.root, told.append)
    assert json.loads(json.dumps(result)) == result
    assert result["ok"] is True
    assert all(c["ok"] for c in result["checks"])
    assert [c["name"] for c in result["checks"]] == [
        *("files", "identity", "runtime"),
        *("golden model/m.int8.onnx", "golden model/m.float32.onnx"),
    ]
    int8, float32 = result["artifacts"]
    assert 30 < int8["sqnr_db"] < 70
    assert int8["own"]["max_abs"] < 1e-5
    top = {
        p: [np.load(bundle.root / f"golden/{i:03d}.{p}.0.npy").argmax() for i in range(3)] for p in ("float32", "int8")
    }
    assert int8["outputs"][0]["agreement"] == np.mean(np.equal(top["float32"], top["int8"]))
    assert float32["outputs"][0]["agreement"] == 1.0
    assert float32["sqnr_db"] > 100
    assert float32["own"] is None
    assert result["identity"] == bundle.manifest["identity"]
    assert told == ["files", "runtime", "model/m.int8.onnx", "model/m.float32.onnx"]


def test_newer_minimum_runtime_is_said_before_anything_is_loaded(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.manifest["run"]["minimum"]["onnxruntime"] = "99.1.0"
    bundle.seal()
    jobs, real = [], process.run

    def run(request: dict[str, Any], *rest: Any) -> dict[str, Any]:
        jobs.append(request["job"])
        return real(request, *rest)

    monkeypatch.setattr(process, "run", run)
    code, message = refused(bundle)
    assert code == 6
    assert message.startswith("the model needs onnxruntime 99.1.0 or newer (opset 13, ir version 8), found ")
    assert message.endswith('Install it: python3 -m pip install numpy "onnxruntime>=99.1.0"')
    assert jobs == ["probe"]


def test_missing_runtime_and_provider(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.manifest["run"]["provider"] = "CUDAExecutionProvider"
    bundle.seal()
    code, message = refused(bundle)
    assert code == 6
    assert message.startswith("needs CUDAExecutionProvider, this onnxruntime has only ")
    assert "onnxruntime-gpu" in message

    def run(request: dict[str, Any], *rest: Any) -> dict[str, Any]:
        raise runtime_bench.RuntimeMissing("cannot import numpy: No module named 'numpy'")

    monkeypatch.setattr(process, "run", run)
    code, message = refused(bundle)
    assert code == 6
    assert "No module named 'numpy'" in message
    assert "pip install" in message


def test_unknown_backend(bundle: Bundle) -> None:
    bundle.manifest["backend"]["name"] = "abacus"
    bundle.seal()
    code, message = refused(bundle)
    assert (code, '"abacus"' in message, "onnxruntime" in message) == (6, True, True)


def test_planted_wrong_golden_output_is_a_quality_failure(bundle: Bundle) -> None:
    path = "000.float32.0.npy"
    bundle.save_golden(path, np.load(bundle.root / "golden" / path) * 1.5)
    bundle.seal()
    result = runtime_bench.verify_bundle(bundle.root)
    assert result["ok"] is False
    for name in ("golden model/m.int8.onnx", "golden model/m.float32.onnx"):
        assert check(result, name)["ok"] is False
        assert "SQNR" in check(result, name)["detail"]
    assert result["artifacts"][0]["sqnr_db"] < 30


def test_wrong_own_output_is_told_but_is_no_failure(bundle: Bundle) -> None:
    path = "000.int8.0.npy"
    bundle.save_golden(path, np.load(bundle.root / "golden" / path) + np.float32(0.25))
    bundle.seal()
    result = runtime_bench.verify_bundle(bundle.root)
    assert result["ok"]
    assert result["artifacts"][0]["own"] == {"max_abs": pytest.approx(0.25, rel=1e-4), "identical": False}
    assert "within 0.25 of the build host's" in check(result, "golden model/m.int8.onnx")["detail"]


def test_nan_is_a_failure_whatever_the_tolerance(bundle: Bundle) -> None:
    bundle.save_golden("002.input.0.npy", np.full((1, 8), np.nan, np.float32))
    bundle.manifest["golden"]["tolerance"] = {"int8": {"sqnr_db": -300.0}, "float32": {"sqnr_db": -300.0}}
    bundle.seal()
    result = runtime_bench.verify_bundle(bundle.root)
    assert not result["ok"]
    assert check(result, "golden model/m.float32.onnx")["detail"] == "y: NaN in the output"


def test_artifact_that_does_not_load_is_a_failed_check(bundle: Bundle) -> None:
    (bundle.root / "model/m.float32.onnx").write_bytes(b"no model")
    bundle.seal()
    result = runtime_bench.verify_bundle(bundle.root)
    assert not result["ok"]
    assert check(result, "golden model/m.int8.onnx")["ok"]
    failed = check(result, "golden model/m.float32.onnx")
    assert failed["detail"].startswith("it does not run: ")
    assert "refuses the model: " in failed["detail"]
    assert str(bundle.root) not in failed["detail"]


def test_other_shape_and_missing_output_are_faults(bundle: Bundle) -> None:
    bundle.save_golden("000.float32.0.npy", np.zeros((1, 6), np.float32))
    bundle.seal()
    result = runtime_bench.verify_bundle(bundle.root)
    assert result["artifacts"][0]["outputs"][0]["fault"] == "shape (1, 5) where the golden output has (1, 6)"
    bundle.manifest["signature"]["outputs"][0]["name"] = "z"
    bundle.seal()
    result = runtime_bench.verify_bundle(bundle.root)
    assert result["artifacts"][0]["outputs"][0]["fault"] == "the artifact has no output of this name; it has: y"


ARM = "processor\t: {}\nFeatures\t: fp asimd evtstrm crc32 {}\nCPU implementer\t: 0x41\nCPU part\t: {}\n\n"
X86 = "processor\t: {}\nmodel name\t: {}\nflags\t\t: fpu sse4_2 avx f16c fma avx2 {}\n\n"
CPUINFO = {
    "Cortex-A72": ("aarch64", "".join(ARM.format(i, "cpuid", "0xd08") for i in range(4))),
    "Cortex-A76": ("aarch64", "".join(ARM.format(i, "fphp asimdhp asimddp", "0xd0b") for i in range(4))),
    "Ryzen V2000": ("x86_64", "".join(X86.format(i, "AMD Ryzen Embedded V2718", "bmi2") for i in range(2))),
    "Tiger Lake": ("x86_64", "".join(X86.format(i, "i7-1165G7", "avx512f avx512bw avx512_vnni") for i in range(2))),
}
"""/proc/cpuinfo by processor: without dot product, with it, AVX2 only, with VNNI."""
PI5 = {"name": "raspberry-pi-5", "arch": "aarch64", "isa": ["asimd", "asimdhp", "fphp", "asimddp"]}
NUC = {"name": "nuc", "arch": "x86_64", "isa": ["avx2", "fma", "avx512_vnni"]}


def machine(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    arch, cpuinfo = CPUINFO[name]
    monkeypatch.setattr("platform.machine", lambda: arch)
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(cpuinfo)
    return str(root)


@pytest.mark.parametrize(
    ("target", "name", "lacks"),
    [
        (PI5, "Cortex-A72", "asimdhp, fphp, asimddp"),
        (PI5, "Cortex-A76", None),
        (NUC, "Ryzen V2000", "avx512_vnni"),
        (NUC, "Tiger Lake", None),
        ({**NUC, "isa": ["avx2"]}, "Ryzen V2000", None),
        ({"name": "old"}, "Cortex-A72", None),
    ],
)
def test_b05_features_that_this_processor_lacks(
    target: dict[str, Any],
    name: str,
    lacks: str | None,
    bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle.manifest["target"] = target
    contract = manifest.parse(bundle.manifest)
    found = verify.machine_warnings(contract, machine(name, tmp_path, monkeypatch))
    if lacks is None:
        assert found == []
    else:
        assert len(found) == 1
        assert f"lacks {lacks}, which the target has: int8 may be no faster than float here" in found[0]
        assert name in found[0] or "AMD Ryzen" in found[0]


def test_b05_another_architecture(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.manifest["target"] = PI5
    root = machine("Tiger Lake", tmp_path, monkeypatch)
    said = "this machine is x86_64, the target (raspberry-pi-5) is aarch64: speed and memory here say nothing about it"
    assert verify.machine_warnings(manifest.parse(bundle.manifest), root) == [said]
    bundle.manifest["artifacts"][0]["format"] = "engine"
    with pytest.raises(runtime_bench.VerifyFailure, match="is built for aarch64 and runs nowhere else") as caught:
        verify.machine_warnings(manifest.parse(bundle.manifest), root)
    assert caught.value.code == 9


def noting(order: list[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        order.append(name)
        return real(*args)

    return call


def test_b05_missing_features_are_known_before_the_runtime_is_imported(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.manifest["target"] = {**PI5, "arch": isa.architecture(platform.machine())}
    bundle.seal()
    monkeypatch.setattr(environment, "FLAGS", ("asimd", "asimddp"))
    monkeypatch.setattr(isa, "FLAGS", ("asimd", "asimddp"))
    order: list[str] = []
    for module, name in ((verify, "machine_warnings"), (process, "run")):
        monkeypatch.setattr(module, name, noting(order, name, getattr(module, name)))
    result = runtime_bench.verify_bundle(bundle.root)
    assert order == ["machine_warnings", "run", "run", "run"]
    assert result["ok"]
    assert check(result, "processor")["detail"] != ""
    if platform.machine() == "x86_64":
        assert "lacks asimd, asimddp" in check(result, "processor")["detail"]


def test_features_that_are_not_known_are_not_judged() -> None:
    assert isa.missing_features(["asimddp", "warp_drive"], ["asimd"]) == ["asimddp"]
    assert isa.missing_features(["asimddp"], None) == []
    assert isa.architecture("AMD64") == isa.architecture("x86_64") == "x86_64"
    assert "int8" not in isa.sentence(["fphp"], None)
    assert isa.sentence([], "x") == ""


def test_a_bundle_for_a_provider_that_may_be_short_or_missing(bundle: Bundle) -> None:
    bundle.manifest["run"]["provider"] = "openvino"
    contract = manifest.parse(bundle.manifest)
    with pytest.raises(
        runtime_bench.VerifyFailure, match=r"needs OpenVINO\S+, this .*\"onnxruntime-openvino>=1.10.0\""
    ):
        verify.require_runtime(contract)
    assert verify.require_runtime(contract, allow_fallback=True)["name"] == "onnxruntime"
    with pytest.raises(runtime_bench.VerifyFailure, match='Did you mean "openvino"') as caught:
        verify.require_runtime(contract._replace(provider="openvinoo"), allow_fallback=True)
    assert caught.value.code == 6
    assert verify.require_runtime(contract._replace(provider="CPU"))["name"] == "onnxruntime"


@pytest.mark.parametrize(
    ("a", "b", "older"),
    [
        ("1.9.0", "1.17.0", True),
        ("1.17", "1.17.0", False),
        ("1.17.0rc1", "1.17.0", False),
        ("1.18.0+cu12", "1.17.3", False),
        ("0", "1.0.0", True),
    ],
)
def test_versions(a: str, b: str, older: bool) -> None:
    assert (verify.version_key(a) < verify.version_key(b)) is older


def test_sqnr_by_hand_and_pooled() -> None:
    x = np.array([[3.0, 4.0]], np.float32)
    assert golden.pooled_sqnr_db([[x]], [[x]]) == golden.EXACT_DB
    assert golden.pooled_sqnr_db([[x]], [[x + np.float32(0.5)]]) == pytest.approx(10 * np.log10(25 / 0.5))
    # two samples of one output are pooled, the worst of two outputs counts
    good, bad = [x, x], [x + np.float32(0.5), x]
    assert golden.pooled_sqnr_db([[x], [x]], [[good[0]], [bad[0]]]) == pytest.approx(10 * np.log10(50 / 0.5))
    assert golden.pooled_sqnr_db([good], [[x, x + np.float32(0.5)]]) == pytest.approx(10 * np.log10(25 / 0.5))
    assert golden.decibels(0.0, 1.0) == -golden.EXACT_DB
    assert golden.decibels(0.0, 0.0) == golden.EXACT_DB


def test_infinities_must_agree_and_ties_are_wrong() -> None:
    tally = golden.Tally()
    tally.add(np.array([1.0, np.inf]), np.array([1.0, np.inf]))
    assert (tally.sqnr_db, tally.fault) == (golden.EXACT_DB, None)
    tally.add(np.array([1.0, np.inf]), np.array([1.0, 5.0]))
    assert tally.fault == "infinite elements differ from the golden output"
    tie = golden.Tally()
    tie.add(np.array([[1.0, 2.0], [3.0, 1.0]]), np.array([[2.0, 2.0], [3.0, 1.0]]))
    assert (tie.agree, tie.rows) == (1, 2)
    kinds = golden.Tally()
    kinds.add(np.zeros(2, np.float32), np.zeros(2, np.float64))
    assert kinds.fault == "float64 where the golden output is float32"


def test_large_outputs_are_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "BLOCK", 7)
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=100), 0.1 * rng.normal(size=100)
    tally = golden.Tally()
    tally.add(x, x + noise)
    assert tally.sqnr_db == pytest.approx(10 * np.log10((x @ x) / (noise @ noise)), abs=1e-6)
