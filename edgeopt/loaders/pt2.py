"""``.pt2`` files: members looked at first, then exported to ONNX by torch in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import onnx_ir as ir

from edgeopt.errors import ModelError, ToolchainError
from edgeopt.loaders import onnx_file, pt2_archive
from edgeopt.model import shown

EXPORTER = Path(__file__).with_name("_export_pt2.py")

_PIP = 'pip install "edgeopt[torch]"'
_LAST_LINES = 12
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def load(path: Path, shapes: Mapping[str, tuple[int, ...]], *, trust_pickle: bool) -> ir.Model:
    """Export the program in ``path`` to ONNX and load that.

    Without ``trust_pickle`` torch sees a rewritten copy that holds the program and its weights and nothing
    that could be unpickled or evaluated; the file itself is never given to it.

    Raises:
        ModelError: the archive is damaged, hostile or needs trust, or torch cannot export it.
        ToolchainError: torch or its ONNX exporter is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="edgeopt-pt2-") as folder:
        program, exported = Path(folder, "program.pt2"), Path(folder, "model.onnx")
        if trust_pickle:
            pt2_archive.refuse_hostile(path)
            shutil.copyfile(path, program)
        else:
            pt2_archive.rewrite(path, program)
        _need_torch(path)
        _export(path, program, exported, trust_pickle=trust_pickle)
        # Small networks are read into memory, large ones are mapped: both outlive the folder.
        try:
            model, _ = onnx_file.from_proto(onnx_file.parse(exported), exported, shapes)
        except ModelError as error:
            # The user knows the name of the program only.
            raise ModelError(error.message.replace(shown(exported), shown(path)), remedy=error.remedy) from error
    return model


def _need_torch(path: Path) -> None:
    missing = [name for name in ("torch", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ToolchainError(f"{shown(path)} needs {' and '.join(missing)} to be exported to ONNX.", remedy=_PIP)


def _export(path: Path, program: Path, exported: Path, *, trust_pickle: bool) -> None:
    unwanted = ("TORCH_LOGS", "TORCH_FORCE_", "TORCHDYNAMO_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    # Caches that torch makes go away with the folder.
    environment |= {"TMPDIR": str(program.parent), "TORCHINDUCTOR_CACHE_DIR": str(program.parent)}
    if not trust_pickle:
        # The copy holds no pickle. Should torch find one all the same, it reads tensors and nothing else.
        environment["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    # -P: the current directory must not provide modules.
    command = [sys.executable, "-P", str(EXPORTER), str(program), str(exported)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=program.parent,
        env=environment,
        encoding="utf-8",
        errors="backslashreplace",
    ) as child:
        try:
            _, errors = child.communicate()
        except BaseException:  # Ctrl-C and SIGTERM included: the child must not outlive its parent
            child.kill()
            raise
    if child.returncode == 0 and exported.exists():
        return
    lines = [line for line in _COLOURS.sub("", errors).splitlines() if line.strip()]
    if child.returncode < 0:
        lines.append(f"torch was ended by signal {-child.returncode}, perhaps for want of memory")
    told = "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])
    raise ModelError(
        f"{shown(path)} cannot be exported to ONNX:\n{told}",
        remedy="Export it with torch.onnx.export where the network was written, and give the .onnx file.",
    )
