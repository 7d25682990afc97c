"""Where a network would run: every profile and backend judged from shapes, types and tables. No model is run.

The graph is rewritten once and finished once for each group of profiles that the backend finishes alike. Memory is the
model's share alone: a budget also counts the runtime, which only a measurement knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from edgeopt import passes
from edgeopt.backends.operators import Missing
from edgeopt.backends.registry import BACKENDS
from edgeopt.backends.stated import stated
from edgeopt.errors import TargetError
from edgeopt.memory import footprint
from edgeopt.model import Model, select_keys
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.lower_opset import opset_of
from edgeopt.pipeline.admit import Admitted, load
from edgeopt.pipeline.fits import FLOAT, INT8, Limit, Need, fits, limits_of, need, within
from edgeopt.pipeline.request import Request
from edgeopt.pipeline.static import quantized
from edgeopt.target import Target, list_targets, load_target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """One profile with one of its backends.

    Attributes:
        runs: None where only a build, or a device, can tell.
        builds: whether this version of edgeopt builds for the backend.
        missing: why not, or why it is open.
        fits: whether a form of it is within every limit on memory and size that is known; None where that is open.
        limits: what was compared, ``"memory 64.0 MB"`` as (name, bytes, where from).
        done: what edgeopt itself changes for this profile, such as the opset.
        needs: float first.
    """

    target: str
    backend: str
    release: str
    builds: bool
    runs: bool | None
    missing: tuple[Missing, ...]
    fits: bool | None
    limits: tuple[Limit, ...]
    done: tuple[str, ...]
    needs: tuple[Need, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """All verdicts, by name of the profile and in its order of backends.

    Attributes:
        inputs: as loaded, open dimensions by name.
        assumed: what open dimensions were taken for in the bytes.
        unusable: profiles that could not be read, and why.
    """

    inputs: tuple[str, ...]
    opset: int | None
    precision: str
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    unusable: tuple[tuple[str, str], ...]


def survey(request: Request) -> Survey:
    """Judge every profile that has a name here.

    Raises:
        ModelError: the network is refused whatever the target.
        TargetError: no profile can be used.
    """
    targets, unusable = _targets()
    admitted = load(request, targets[0])
    forms = _Forms(request, admitted, targets[0])
    verdicts = tuple(
        _verdict(target, name, request, forms)
        for target in targets
        for name in target.backends
        if request.backend in (None, name)
    )
    return Survey(
        inputs=tuple(map(str, admitted.model.inputs)),
        opset=opset_of(admitted.model.ir),
        precision=admitted.precision,
        assumed=footprint(forms.rewritten).assumed,
        warnings=admitted.warnings,
        verdicts=verdicts,
        unusable=tuple(unusable),
    )


def _targets() -> tuple[list[Target], list[tuple[str, str]]]:
    found, unusable = [], []
    for info in list_targets():
        try:
            found.append(load_target(info.name))
        except TargetError as error:
            unusable.append((info.name, error.message))
    if not found:
        raise TargetError("no profile can be used", remedy="`edgeopt targets check FILE` says what is wrong with one.")
    return found, unusable


class _Forms:
    """The network in the forms that backends get, each made once."""

    def __init__(self, request: Request, admitted: Admitted, target: Target) -> None:
        self._made: dict[object, Any] = {}
        self._exclude = select_keys(admitted.model, request.exclude)
        self.admitted = admitted
        self.loaded = passes.apply(INFER_SHAPES, admitted.model).model
        seen = admitted.model
        for pass_ in (*passes.normalize(request.fold_limit), *passes.FUSIONS):
            seen = passes.apply(pass_, seen, target).model
        self.rewritten = passes.apply(INFER_SHAPES, seen).model

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def finished(self, backend: ModuleType, target: Target) -> Model:
        """With the backend's own rewrites for such a profile."""

        def make() -> Model:
            seen = self.rewritten
            for pass_ in backend.passes(target):
                seen = passes.apply(pass_, seen, target).model
            return passes.apply(INFER_SHAPES, seen).model

        found: Model = self.once(("finished", *_alike(backend, target)), make)
        return found

    def int8(self, backend: ModuleType, target: Target) -> Model | None:
        """With made-up ranges; None where int8 is not tried. Its bytes are the same for every scheme."""
        if not self.admitted.quantizes:
            return None
        found: tuple[Model, str] | None = self.once(
            ("int8", backend.NAME), lambda: quantized(self.rewritten, backend, target, self._exclude)
        )
        return None if found is None else found[0]


def _alike(backend: ModuleType, target: Target) -> tuple[object, ...]:
    """What of a profile the finished graph and its judgement depend on."""
    return (backend.NAME, target.arch, target.opset_max, target.ir_version_max, target.runtime.get(backend.NAME))


def _verdict(target: Target, name: str, request: Request, forms: _Forms) -> Verdict:
    backend = BACKENDS.get(name)
    if backend is None:
        return Verdict(
            target=target.name,
            backend=name,
            release=target.runtime.get(name, ""),
            builds=False,
            runs=None,
            missing=stated(forms.rewritten, name, target.runtime.get(name)),
            fits=None,
            limits=(),
            done=(),
            needs=(),
        )
    key = _alike(backend, target)
    finished = forms.finished(backend, target)
    missing = forms.once(("judged", *key), lambda: _judged(backend, target, forms, finished))
    needs = forms.once(("needs", *key, target.isa, target.threads), lambda: _needs(backend, target, forms, finished))
    limits = limits_of(target, request.budget)
    return Verdict(
        target=target.name,
        backend=name,
        release=target.runtime.get(name, ""),
        builds=True,
        runs=_runs(missing),
        missing=missing,
        fits=fits(needs, limits),
        limits=limits,
        done=_done(forms.admitted.model, finished, needs, limits),
        needs=needs,
    )


def _judged(backend: ModuleType, target: Target, forms: _Forms, finished: Model) -> tuple[Missing, ...]:
    """Where a build asks the importer with the network as loaded (``settle_backend`` does), so is the table asked.

    Where the table has nothing certain against it and the importer is here, that one is asked, as a build does: it
    converts the network and runs nothing, and knows what no table holds.
    """
    found: tuple[Missing, ...] = backend.judge(finished, target)
    if hasattr(backend, "refuses"):
        first: tuple[Missing, ...] = backend.judge(forms.loaded, target)
        found = (*first, *(other for other in found if other.operator not in {one.operator for one in first}))
        if not any(one.certain for one in found) and backend.probe() is None:
            reason: str | None = forms.once(("asked", backend.NAME), lambda: backend.refuses(forms.admitted.model))
            change = "Build for another backend of the profile."
            return () if reason is None else (Missing(operator="", why=reason, change=change),)
    return found


def _runs(missing: Sequence[Missing]) -> bool | None:
    if any(one.certain for one in missing):
        return False
    return None if missing else True


def _needs(backend: ModuleType, target: Target, forms: _Forms, finished: Model) -> tuple[Need, ...]:
    models = [(FLOAT, finished), (INT8, forms.int8(backend, target))]
    return tuple(need(backend, target, form, model) for form, model in models if model is not None)


def _done(before: Model, after: Model, needs: Sequence[Need], limits: Sequence[Limit]) -> tuple[str, ...]:
    """What edgeopt changes on the way, and which change it takes to fit."""
    was, now = opset_of(before.ir), opset_of(after.ir)
    said = [] if was in (now, None) else [f"opset {was} to {now}"]
    answers = {one.form: within(one, limits) for one in needs} if limits else {}
    if answers.get(FLOAT) is False and answers.get(INT8):
        said.append("fits in int8, not in float")
    return tuple(said)
