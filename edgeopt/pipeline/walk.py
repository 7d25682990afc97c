"""What became of the steps of a ladder, in a journal: a resumed walk takes them from there as long as they follow.

The key of a step covers the model it started from, how the walk goes on (target, backend, limits, lock), every step
before it with what it left, and its own parameters. A step that was skipped or rolled back is not tried again. One that
was kept is done again without judging it: rewrites are cheap, and statistics and comparisons are entries of their own.
What it leaves must have the digest that it had; else it is tried like any other.
"""

from __future__ import annotations

import dataclasses

from edgeopt import model
from edgeopt.pipeline import keys
from edgeopt.pipeline.journal import Journal
from edgeopt.pipeline.search import Search
from edgeopt.plan import Step, StepResult

KIND = "step"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noted:
    """What a step did, and the digest of the state it left."""

    result: StepResult
    state: str


@dataclasses.dataclass(kw_only=True)
class Walk:
    """A walk down a ladder; ``chain`` is the digest of all that was so far."""

    journal: Journal
    chain: str = ""

    def known(self, step: Step) -> Noted | None:
        """What became of a step in an earlier try. From here on, what follows from the step has its key."""
        if self.journal.folder is None:
            return None
        self.journal.scope = keys.digest([self.chain, dataclasses.asdict(step)])
        found = self.journal.recall(KIND, self.journal.scope)
        return found if isinstance(found, Noted) else None

    def goes_on(self, result: StepResult, search: Search, known: Noted | None) -> None:
        """Note a step that is done; ``known`` where it was taken from the journal."""
        if self.journal.folder is None:
            return
        noted = known or Noted(result=result, state=state(search) if result.status == "kept" else "")
        if known is None:
            self.journal.keep(KIND, self.journal.scope, noted)
        self.chain = keys.digest([self.journal.scope, result.status, noted.state])


def begin(journal: Journal, search: Search, facts: object) -> Walk:
    """A walk from the model of ``search``; ``facts`` are what else decides how it goes, as plain JSON values."""
    return Walk(journal=journal, chain="" if journal.folder is None else keys.digest([state(search), facts]))


def state(search: Search) -> str:
    """Digest of what a walk goes on with."""
    choice = dataclasses.asdict(search.choice) | {"float_nodes": sorted(search.choice.float_nodes)}
    reduced = search.quantized
    return keys.digest(
        {
            "model": model.digest(search.model),
            "finished": None if search.finished is None else model.digest(search.finished),
            "quantized": None if reduced is None else [reduced.precision, model.digest(reduced.model)],
            "choice": choice,
        }
    )


def put_back(search: Search, before: Search) -> None:
    """Give a search the state of a copy that was made before."""
    for field in dataclasses.fields(Search):
        setattr(search, field.name, getattr(before, field.name))
