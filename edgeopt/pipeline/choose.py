"""Which backend builds for a target: the first of its list that this version has."""

from __future__ import annotations

import dataclasses
from types import ModuleType

from edgeopt.backends import onnxruntime
from edgeopt.errors import ToolchainError
from edgeopt.target import Target

BACKENDS: dict[str, ModuleType] = {onnxruntime.NAME: onnxruntime}
"""The whole registry."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackendChoice:
    """The backend used, the one the target prefers, and why they differ (None when they do not)."""

    backend: ModuleType
    preferred: str
    reason: str | None

    @property
    def name(self) -> str:
        """Name of the backend used."""
        return str(self.backend.NAME)


def choose_backend(target: Target) -> BackendChoice:
    """Pick a backend.

    Raises:
        ToolchainError: none of the target's backends can build here.
    """
    reasons: list[str] = []
    for name in target.backends:
        module = BACKENDS.get(name)
        reason = f"this version of edgeopt does not build for {name}" if module is None else module.probe()
        if module is not None and reason is None:
            return BackendChoice(backend=module, preferred=target.backends[0], reason="; ".join(reasons) or None)
        reasons.append(str(reason))
    raise ToolchainError(
        f"no backend of {target.name} can build here: {'; '.join(reasons)}", remedy="pip install onnxruntime"
    )
