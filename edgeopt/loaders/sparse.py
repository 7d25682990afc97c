"""Sparse tensors become dense ones: the in-memory graph has no sparse kind and would drop them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from edgeopt.errors import ModelError
from edgeopt.loaders.tensors import graphs_of
from edgeopt.model import shown

LARGEST = 2**28
"""Elements of the largest dense tensor made from a sparse one."""


def densify(proto: onnx.ModelProto, path: Path) -> None:
    """Replace sparse initializers and the ``sparse_value`` of Constant nodes by dense tensors.

    Raises:
        ModelError: the dense tensor would be too large, or values and indices do not belong together.
    """
    for graph in graphs_of(proto):
        if isinstance(graph, onnx.GraphProto):
            for sparse in graph.sparse_initializer:
                graph.initializer.append(_dense(sparse, path))
            del graph.sparse_initializer[:]
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("sparse_tensor") and node.op_type == "Constant":
                    dense = _dense(attribute.sparse_tensor, path)
                    attribute.Clear()
                    attribute.CopyFrom(onnx.helper.make_attribute("value", dense))


def _dense(sparse: onnx.SparseTensorProto, path: Path) -> onnx.TensorProto:
    label = f'{shown(path)}: sparse tensor "{sparse.values.name}"'
    parts = (sparse.values, sparse.indices)
    if any(t.data_location == onnx.TensorProto.EXTERNAL for t in parts):
        raise ModelError(f"{label} has external data, which is not supported.", remedy="Save it as a dense tensor.")
    count = math.prod(sparse.dims)
    if any(d < 0 for d in sparse.dims) or count > LARGEST:
        raise ModelError(f"{label} has the shape {list(sparse.dims)}; the largest supported has {LARGEST:,} elements.")
    values, indices = (numpy_helper.to_array(t) for t in parts)
    rank = len(sparse.dims)
    if indices.ndim == 2 and indices.shape == (values.size, rank):
        inside = bool(((indices >= 0) & (indices < np.array(sparse.dims))).all())
        flat = (
            indices @ np.array([math.prod(sparse.dims[i + 1 :]) for i in range(rank)], np.int64) if inside else indices
        )
    elif indices.shape == (values.size,):
        inside = bool(((indices >= 0) & (indices < count)).all())
        flat = indices
    else:
        raise ModelError(f"{label} has {values.size} values and indices of shape {list(indices.shape)}.")
    if not inside:
        raise ModelError(f"{label} has indices outside its shape {list(sparse.dims)}.")
    dense = np.zeros(count, values.dtype)
    dense[flat.astype(np.int64)] = values.ravel()
    return numpy_helper.from_array(dense.reshape(list(sparse.dims)), sparse.values.name)
