"""Which backend builds for a target: the first of its list that this version has."""

from __future__ import annotations

import dataclasses
from types import ModuleType

from edgeopt.backends.registry import BACKENDS, INSTALL
from edgeopt.errors import ModelError, ToolchainError
from edgeopt.model import Model
from edgeopt.target import Target


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


def choose_backend(target: Target, wanted: str | None = None) -> BackendChoice:
    """Pick a backend: ``wanted``, whatever the target lists, or the first of its list that can build here.

    Raises:
        ToolchainError: the wanted one, or every one of the target's, cannot build here.
    """
    reasons: list[str] = []
    for name in target.backends if wanted is None else (wanted,):
        module = BACKENDS.get(name)
        reason = f"this version of edgeopt does not build for {name}" if module is None else module.probe()
        if module is not None and reason is None:
            preferred = target.backends[0] if wanted is None else wanted
            return BackendChoice(backend=module, preferred=preferred, reason="; ".join(reasons) or None)
        reasons.append(str(reason))
    which = f"no backend of {target.name}" if wanted is None else f"the backend {wanted}"
    remedy = _remedy(*(target.backends if wanted is None else (wanted,)))
    raise ToolchainError(f"{which} can build here: {'; '.join(reasons)}", remedy=remedy)


def settle_backend(choice: BackendChoice, target: Target, model: Model, wanted: str | None = None) -> BackendChoice:
    """The choice again with the model at hand: a runtime that has no operator for a part of it is passed over.

    Raises:
        ModelError: the backend was asked for by name, or the target lists no other that can build here.
    """
    refuses = getattr(choice.backend, "refuses", None)
    reason = None if refuses is None else refuses(model)
    if reason is None:
        return choice
    others = tuple(name for name in target.backends if name != choice.name) if wanted is None else ()
    fitting = [name for name in others if name in BACKENDS and BACKENDS[name].probe() is None]
    if not fitting:
        raise ModelError(reason, remedy="Build for another runtime: --backend onnxruntime.")
    said = "; ".join(filter(None, (choice.reason, reason)))
    return BackendChoice(backend=BACKENDS[fitting[0]], preferred=choice.preferred, reason=said)


def _remedy(*names: str) -> str:
    lines = [INSTALL[name] for name in names if name in INSTALL]
    return " or ".join(lines) or f"There are: {', '.join(BACKENDS)}."
