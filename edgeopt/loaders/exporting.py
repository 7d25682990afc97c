"""Runs torch in a process of its own: a network goes in as files, an ONNX file comes out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgeopt.errors import ModelError, ToolchainError
from edgeopt.loaders._child import REFUSED, TOLD

CHILD = Path(__file__).with_name("_child.py")

_PIP = 'pip install "edgeopt[torch]"'
_LAST_LINES = 12
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_EXPORT = "Export it with torch.onnx.export where the network was written, and give the .onnx file."


def need_torch(label: str) -> None:
    """Raise ToolchainError with the pip line where torch or its ONNX exporter is not installed."""
    missing = [name for name in ("torch", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ToolchainError(f"{label} needs {' and '.join(missing)} to be exported to ONNX.", remedy=_PIP)


def export(
    kind: str,
    label: str,
    exported: Path,
    options: Mapping[str, Any],
    *,
    trust_pickle: bool,
    folder: Path | None = None,
    remedy: str = _EXPORT,
) -> dict[str, Any]:
    """Run ``_export_<kind>.main(exported, label=label, **options)`` in a child process; returns the facts it returned.

    Args:
        kind: ``pt2``, ``torchscript`` or ``factory``.
        label: what the user calls the network, for messages.
        exported: the ONNX file to write, in a folder where temporary files may lie.
        options: keyword arguments that JSON can carry.
        trust_pickle: torch may unpickle anything.
        folder: the child's current directory; that of ``exported`` when None.
        remedy: what to do when torch fails.

    Raises:
        ModelError: the child refused the network, failed or was ended.
    """
    scratch = exported.parent
    asked = exported.with_suffix(".json")
    asked.write_text(json.dumps({"label": label, **options}), encoding="utf-8")
    unwanted = ("TORCH_LOGS", "TORCH_FORCE_", "TORCHDYNAMO_", "PYTORCH_JIT")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    # Caches that torch makes go away with the folder.
    environment |= {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": str(scratch)}
    if not trust_pickle:
        # Nothing that was checked holds a pickle beyond tensors; should torch find one, it reads tensors alone.
        environment["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    # -P: the current directory must not provide modules.
    command = [sys.executable, "-P", str(CHILD), kind, str(exported), str(asked)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=folder or scratch,
        env=environment,
        encoding="utf-8",
        errors="backslashreplace",
    ) as child:
        try:
            _, errors = child.communicate()
        except BaseException:  # Ctrl-C and SIGTERM included: the child must not outlive its parent
            child.kill()
            raise
    told = exported.with_suffix(TOLD)
    if child.returncode == 0 and exported.exists():
        facts: dict[str, Any] = json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
        return facts
    lines = [line for line in _COLOURS.sub("", errors).splitlines() if line.strip()]
    if child.returncode == REFUSED and lines:
        refusal = json.loads(lines[-1])
        raise ModelError(refusal["message"], remedy=refusal["remedy"])
    if child.returncode < 0:
        lines.append(f"torch was ended by signal {-child.returncode}, perhaps for want of memory")
    last = "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])
    raise ModelError(f"{label} cannot be exported to ONNX:\n{last}", remedy=remedy)
