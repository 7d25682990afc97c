"""The zip archive of a ``.pt2`` file: what is in it, and a copy that is safe to give to torch.

torch.export.load (seen in torch 2.6 to 2.13) runs code from the file in more ways than one. It unpickles sample
inputs (weights only, then everything when that fails), weights and constants marked ``use_pickle``, custom and
opaque objects, and all members of the older formats. It loads compiled libraries. It evaluates the symbolic
expressions of the program as Python, and node names and operator names reach generated code. So the members are
read here, everything that torch reads is checked against what an exporter writes, and torch gets a new archive
with the checked parts alone. Sample inputs are not needed and stay out.
"""

from __future__ import annotations

import json
import pickletools
import re
import zipfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

from edgeopt.errors import ModelError
from edgeopt.loaders import pt2_program
from edgeopt.loaders.sniff import refused, size_words
from edgeopt.model import shown

MODEL = "model"
"""The program that torch.export.save writes; an archive may hold others beside it."""

LARGEST_RATIO = 100
LARGEST_JSON = 1 << 28
LARGEST_COUNT = 200_000
SLACK = 1 << 26

_TRUST = "If you made this file yourself, load it with --trust-pickle; otherwise do not use it."
_OLD = "Save it again with torch 2.9 or newer, or, if you made it yourself, load it with --trust-pickle."
_FIXED = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little", ".data/version": b"6\n"}

# What torch.save writes for tensors in tuples and dicts.
_PLAIN_GLOBALS = re.compile(
    r"torch\._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter)|torch \w+Storage|torch\.storage UntypedStorage|"
    r"torch (Size|device)|torch\.serialization _get_layout|collections OrderedDict|torch (b?float|int|uint|bool)\w*"
)


_DAMAGE = (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RuntimeError, OSError, zlib.error)
"""What reading a member of a damaged archive raises."""


class Archive:
    """An opened archive: members by name below the one top folder.

    Attributes:
        path: the file.
        members: zip entries by name without the top folder.
        what: kind of archive, for messages.
    """

    def __init__(self, path: Path, file: zipfile.ZipFile, what: str = "torch.export archive") -> None:
        self.path = path
        self.file = file
        self.what = what
        self.members = _members(path, file)

    def read(self, name: str) -> bytes:
        """Bytes of a member, whose size was checked."""
        try:
            return self.file.read(self.members[name])
        except KeyError as error:
            raise refused(self.path, f"an incomplete {self.what} without {name}", "save it again") from error
        except _DAMAGE as error:
            raise refused(self.path, f"a damaged {self.what} ({shown(name)})", "copy it again") from error

    def json(self, name: str) -> Any:
        """A member parsed as JSON."""
        if name in self.members and self.members[name].file_size > LARGEST_JSON:
            raise hostile(self.path, f"{name} has {size_words(self.members[name].file_size)}")
        try:
            return json.loads(self.read(name))
        except (ValueError, RecursionError) as error:
            raise refused(self.path, f"a torch.export archive damaged in {name}, no JSON", "copy it again") from error


def hostile(path: Path, why: str) -> ModelError:
    """The error for a file that holds what no exporter writes."""
    return ModelError(f"{shown(path)} is refused: {why}.", remedy=_TRUST)


def _members(path: Path, file: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    entries = file.infolist()
    size, total = path.stat().st_size, 0
    if len(entries) > LARGEST_COUNT:
        raise hostile(path, f"the archive has {len(entries)} members")
    found: dict[str, zipfile.ZipInfo] = {}
    tops = set()
    for entry in entries:
        name, label = entry.filename, shown(entry.filename)
        parts = name.rstrip("/").split("/")
        if name.startswith("/") or "\\" in name or ":" in parts[0] or any(p in ("", ".", "..") for p in parts):
            raise hostile(path, f"its member {label} would leave the archive's folder")
        if entry.flag_bits & 1:
            raise hostile(path, f"its member {label} is encrypted")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise hostile(path, f"its member {label} is compressed in an unusual way")
        if entry.file_size > LARGEST_RATIO * max(entry.compress_size, 1) + SLACK // 1024:
            raise hostile(path, f"its member {label} unpacks from {entry.compress_size} to {entry.file_size} bytes")
        total += entry.file_size
        tops.add(parts[0])
        short = name.split("/", 1)[-1] if len(parts) > 1 else name
        if short in found:
            raise hostile(path, f"its member {label} occurs twice")
        found[short] = entry
    if total > 4 * size + SLACK:
        raise hostile(path, f"its members unpack to {size_words(total)} from {size_words(size)}")
    if "archive_format" in found and len(tops) > 1:
        raise hostile(path, "the archive has more than one top folder")
    return found


def refuse_hostile(path: Path) -> None:
    """The checks that hold for trusted files too: names, sizes, damage, compiled code.

    Raises:
        ModelError: the archive is damaged, its members leave their folder, or it holds no program.
    """
    with open_zip(path) as file:
        _need_program(Archive(path, file))


def rewrite(path: Path, copy: Path) -> None:
    """Write an archive with the checked program and weights of ``path`` to ``copy``.

    Raises:
        ModelError: a member would be unpickled, or holds what no exporter writes.
    """
    with open_zip(path) as file:
        archive = Archive(path, file)
        _need_program(archive)
        _refuse_pickles(archive)
        _check_format(archive)
        try:
            program = pt2_program.clean_program(archive.json(f"models/{MODEL}.json"))
            payloads = {
                kind: pt2_program.clean_payloads(archive.json(_config(kind)), prefix)
                for kind, prefix in (("weights", "weight_"), ("constants", "tensor_"))
            }
        except pt2_program.RefusedError as error:
            raise hostile(path, str(error)) from error
        except RecursionError as error:
            raise hostile(path, "its program is nested too deeply") from error
        with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as out:
            for name, data in _FIXED.items():
                out.writestr(f"program/{name}", data)
            out.writestr(f"program/models/{MODEL}.json", json.dumps(program))
            out.writestr(f"program/data/sample_inputs/{MODEL}.pt", b"")
            for kind, config in payloads.items():
                for member in sorted({entry["path_name"] for entry in config["config"].values()}):
                    data = archive.read(f"data/{kind}/{member}")
                    why = pt2_program.wrong_size(config, member, len(data))
                    if why:
                        raise hostile(path, why)
                    out.writestr(f"program/data/{kind}/{member}", data)
                out.writestr(f"program/{_config(kind)}", json.dumps(config))


def refuse_members(archive: Archive) -> None:
    """Refuse members that torch would unpickle with Python, or load as machine code.

    Raises:
        ModelError: names the member.
    """
    for name in archive.members:
        if name == "model.json":
            raise ModelError(
                f"{shown(archive.path)} is in a format of torch 1.3 and older.",
                remedy="Save it again with a torch of today.",
            )
        if name.startswith("data/aotinductor/") or name.endswith((".so", ".dll", ".dylib")):
            raise hostile(archive.path, f"its member {shown(name)} is machine code")


def _config(kind: str) -> str:
    return f"data/{kind}/{MODEL}_{kind}_config.json"


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip archive; ModelError where it is cut off or damaged."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        raise refused(path, "a zip archive that is cut off or damaged", "copy it again") from error


def _need_program(archive: Archive) -> None:
    names, path = archive.members, archive.path
    if any(name.startswith("data/aotinductor/") for name in names):
        raise ModelError(
            f"{shown(path)} holds a compiled AOTInductor package, machine code for one kind of machine.",
            remedy="Give the file that torch.export.save wrote.",
        )
    if f"models/{MODEL}.json" in names or "serialized_exported_program.json" in names:
        return
    others = sorted(n for n in names if n.startswith("models/"))
    held = f"it holds {', '.join(shown(n) for n in others[:3])}" if others else "it holds none"
    raise ModelError(f"{shown(path)} has no program called {MODEL}: {held}.", remedy="Save it with torch.export.save.")


def _check_format(archive: Archive) -> None:
    for name in ("archive_format", "archive_version", "byteorder"):
        if name in archive.members and archive.members[name].file_size > len(_FIXED[name]):
            raise hostile(archive.path, f"its member {name} is not what torch writes")
        found = archive.read(name)
        if found != _FIXED[name]:
            raise ModelError(
                f"{shown(archive.path)} has the {name} {found!r}; {_FIXED[name]!r} is supported.",
                remedy="Save it again with a torch of today, or export it to .onnx there.",
            )


def _refuse_pickles(archive: Archive) -> None:
    path, names = archive.path, archive.members
    if "serialized_exported_program.json" in names:
        raise ModelError(
            f"{shown(path)} is in the format of torch 2.7 and older, whose weights are pickled.", remedy=_OLD
        )
    for name in names:
        label = shown(name)
        folder, _, tail = name.rpartition("/")
        if folder in ("data/weights", "data/constants") and tail == f"{MODEL}.pt":
            raise ModelError(f"{shown(path)} is in the format of torch 2.8, whose {label} is pickled.", remedy=_OLD)
        if tail.startswith(("custom_obj_", "opaque_obj_")) or tail.endswith((".pkl", ".pickle")):
            raise hostile(path, f"its member {label} is a pickled object, and unpickling runs code")
        if folder == "data/sample_inputs":
            # Left out of the copy. A sample that is more than tensors tells of a file to keep away from.
            why = unusual_pickle(archive.read(name))
            if why:
                raise hostile(path, f"its member {label} is a pickle that {why}")


def unusual_pickle(data: bytes, count: int = 1) -> str | None:
    """What a torch.save'd member does beyond rebuilding tensors; ``count`` pickles are looked at, none is run."""
    if not data:
        return None
    try:
        with zipfile.ZipFile(BytesIO(data)) as inner:
            entry = next((e for e in inner.infolist() if e.filename.endswith("data.pkl")), None)
            if entry is None or entry.file_size > LARGEST_JSON:
                return "has no readable content"
            stream = inner.read(entry)
    except _DAMAGE:
        stream = data
    pickles = BytesIO(stream)
    try:
        for _ in range(count):
            asked = _unusual_name(pickles)
            if asked:
                return f"asks for {shown(asked.replace(' ', '.'))}"
    except ValueError:
        return "cannot be read"
    return None


def _unusual_name(pickles: BytesIO) -> str | None:
    """The first name in the next pickle that rebuilds no tensor; ValueError where it cannot be read."""
    strings: list[str] = []
    for code, argument, _ in pickletools.genops(pickles):
        if code.name in ("SHORT_BINUNICODE", "BINUNICODE", "UNICODE", "BINUNICODE8"):
            strings.append(str(argument))
        wanted = str(argument) if code.name in ("GLOBAL", "INST") else None
        if code.name == "STACK_GLOBAL":
            # torch does not write it, and what it names need not be the last texts.
            return " ".join(strings[-2:])
        if code.name.startswith("EXT"):
            wanted = "a registered extension"
        if wanted is not None and not _PLAIN_GLOBALS.fullmatch(wanted):
            return wanted
    return None
