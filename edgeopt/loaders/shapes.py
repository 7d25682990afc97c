"""New shapes for the inputs of a network, and what follows from them for every value inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from edgeopt.errors import ModelError, did_you_mean
from edgeopt.loaders.tensors import graphs_of
from edgeopt.model import shown

LIGHT_BYTES = 1024
"""Initializers up to this size stay in the light copy: shape inference reads the small ones."""

_UNKNOWN_DOMAIN = "edgeopt.unknown"

_PLACEHOLDERS = ("", "?", "-1", "None")


def forget_placeholders(proto: onnx.ModelProto) -> None:
    """A dim called "?", or of size -1, is not known; two of them are not one size (Paddle names all of them so)."""
    for graph in graphs_of(proto):
        if isinstance(graph, onnx.GraphProto):
            for value in (*graph.input, *graph.output, *graph.value_info):
                for dim in value.type.tensor_type.shape.dim:
                    if dim.dim_value < 0 or (dim.HasField("dim_param") and dim.dim_param in _PLACEHOLDERS):
                        dim.Clear()


def light_copy(proto: onnx.ModelProto, *, for_checker: bool) -> onnx.ModelProto:
    """The model with large initializers turned into inputs: small enough for the C++ checker and shape inference.

    External data cannot be resolved by the checker, which would look into the current directory; with
    ``for_checker`` nested external tensors become empty ones.
    """
    light = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    source, graph = proto.graph, light.graph
    graph.name = source.name or "graph"
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    declared = {value.name for value in source.input}
    for tensor in source.initializer:
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if external or tensor.ByteSize() > LIGHT_BYTES:
            if tensor.name not in declared:
                graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        else:
            graph.initializer.append(tensor)
    _hide_unknown(light)
    if for_checker:
        for nested in graphs_of(light):
            for tensor in _attribute_tensors(nested):
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    tensor.ClearField("data_location")
                    del tensor.external_data[:]
                    tensor.dims[:] = [0]
    return light


def _hide_unknown(light: onnx.ModelProto) -> None:
    """Give operators that the default domain never had a domain of their own, in this copy alone.

    Both the checker and inference stop at one; of a foreign domain they know that nothing is known.
    """
    functions = {function.name for function in light.functions if function.domain == ""}
    hidden = [
        node
        for graph in graphs_of(light)
        for node in graph.node
        if node.domain == "" and not onnx.defs.has(node.op_type) and node.op_type not in functions
    ]
    for node in hidden:
        node.domain = _UNKNOWN_DOMAIN
    if hidden:
        light.opset_import.add(domain=_UNKNOWN_DOMAIN, version=1)
        for function in light.functions:
            function.opset_import.add(domain=_UNKNOWN_DOMAIN, version=1)


def _attribute_tensors(graph: onnx.GraphProto | onnx.FunctionProto) -> list[onnx.TensorProto]:
    found = list(graph.initializer) if isinstance(graph, onnx.GraphProto) else []
    for node in graph.node:
        for attribute in node.attribute:
            found.extend(attribute.tensors)
            if attribute.HasField("t"):
                found.append(attribute.t)
    return found


def complete(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Put ``shapes`` into the graph inputs and let all other shapes follow; fill in outputs without a shape.

    A symbolic dimension that a new shape fixes is fixed in every input that names it. A size that the shape leaves open
    (``InputShape.open``) becomes a symbol: whether the network works at other sizes, only running it can tell.

    Raises:
        ModelError: an unknown input, another rank, sizes that contradict each other, or a network that
            cannot work with these sizes.
    """
    unshaped = any(not value.type.tensor_type.HasField("shape") for value in proto.graph.output)
    if not shapes and not unshaped:
        return
    strict = _infer(proto, strict=True) is not None if shapes else False
    if shapes:
        _override(proto.graph, shapes, path)
        declared = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in proto.graph.output]
        _forget(proto)
    inferred = _infer(proto, strict=strict, path=path, shapes=shapes)
    if inferred is None:
        inferred = onnx.ModelProto()
    kept = {v.name for v in (*proto.graph.input, *proto.graph.initializer)}
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(v for v in inferred.graph.value_info if v.name not in kept)
    found = {v.name: v for v in inferred.graph.output}
    for position, value in enumerate(proto.graph.output):
        new = found.get(value.name)
        if new is not None and new.type.tensor_type.HasField("shape"):
            value.CopyFrom(new)
        elif shapes:
            _unknown_sizes(value, declared[position])


def _override(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    initialized = {t.name for t in graph.initializer}
    inputs = {v.name: v for v in graph.input if v.name not in initialized}
    bound: dict[str, int | str] = {}
    for name, sizes in shapes.items():
        if name not in inputs:
            raise ModelError(
                f'{shown(path)} has no input "{name}".{did_you_mean(name, list(inputs))}',
                remedy=f"Its inputs are: {', '.join(inputs) or 'none'}.",
            )
        if any(size < 1 for size in sizes):
            raise ModelError(f'the shape {sizes} for "{name}" has a size below 1.')
        tensor = inputs[name].type.tensor_type
        dims = tensor.shape.dim
        if tensor.HasField("shape") and len(dims) != len(sizes):
            raise ModelError(
                f'input "{name}" of {shown(path)} has {len(dims)} dimensions, {_words(sizes)} has {len(sizes)}.',
                remedy=f"Its shape in the file is {_declared(inputs[name])}.",
            )
        wanted = _dims(sizes)
        for dim, size in zip(dims, wanted):
            if dim.dim_param and bound.setdefault(dim.dim_param, size) != size:
                both = f"{bound[dim.dim_param]} and {size}"
                raise ModelError(f'the dimension "{dim.dim_param}" cannot be {both} at once (input "{name}").')
        tensor.shape.CopyFrom(onnx.TensorShapeProto(dim=[_dimension(size) for size in wanted]))
    for name, value in inputs.items():
        for dim in value.type.tensor_type.shape.dim if name not in shapes else ():
            if dim.dim_param in bound:
                dim.CopyFrom(_dimension(bound[dim.dim_param]))


def _dims(sizes: tuple[int, ...]) -> list[int | str]:
    """Sizes, with a name for each one that stays open."""
    named: Mapping[int, str] = getattr(sizes, "open", {})
    return [named.get(axis, size) for axis, size in enumerate(sizes)]


def _dimension(size: int | str) -> onnx.TensorShapeProto.Dimension:
    if isinstance(size, str):
        return onnx.TensorShapeProto.Dimension(dim_param=size)
    return onnx.TensorShapeProto.Dimension(dim_value=size)


def _forget(proto: onnx.ModelProto) -> None:
    """Drop every shape that followed from the old input shapes; element types stay."""
    for graph in graphs_of(proto):
        del graph.value_info[:]
        if isinstance(graph, onnx.GraphProto):
            for value in graph.output:
                value.type.tensor_type.ClearField("shape")


def _infer(
    proto: onnx.ModelProto,
    *,
    strict: bool,
    path: Path | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> onnx.ModelProto | None:
    """Inferred light copy; None where inference fails and no ``shapes`` are to blame."""
    light = light_copy(proto, for_checker=False)
    try:
        return onnx.shape_inference.infer_shapes(light, check_type=True, strict_mode=strict, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        if not (strict and shapes and path):
            return None
        wanted = ", ".join(f"{name}={_words(sizes)}" for name, sizes in shapes.items())
        reason = str(error).strip().splitlines()[-1]
        raise ModelError(f"{shown(path)} cannot work with {wanted}: {reason}") from error


def _unknown_sizes(value: onnx.ValueInfoProto, declared: onnx.ValueInfoProto) -> None:
    """The rank that was declared, with sizes that nobody knows any more."""
    if declared.type.tensor_type.HasField("shape"):
        value.type.tensor_type.shape.SetInParent()
        for _ in declared.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim.add()


def _words(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, _dims(sizes))) or "scalar"


def _declared(value: onnx.ValueInfoProto) -> str:
    return "x".join(
        d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in value.type.tensor_type.shape.dim
    )
