"""What one runtime is expected to need for a model, as its backend predicts it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predicted:
    """Bytes at the runtime's peak, beyond what it needs for a model of one node.

    ``activations`` is None when a shape is unknown, and so is ``total``.

    Attributes:
        weights: constants as the file has them and the runtime still holds them, mapped or read.
        packed: copies of constants in the layout of a kernel.
        activations: what the calls add for tensors and for the work space of kernels.
        overhead: all the rest: the graph's own objects, generated code, pages of the runtime's library, and what
            loading left behind in the allocator.
        peak_operators: keys of the nodes whose call has the most activations alive, the largest first.
        assumed: symbolic batch dims that were counted as 1, as ``"N=1"``.
    """

    weights: int
    packed: int
    activations: int | None
    overhead: int
    peak_operators: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def total(self) -> int | None:
        """The sum of the parts."""
        return None if self.activations is None else self.weights + self.packed + self.activations + self.overhead
