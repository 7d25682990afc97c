"""The JSON of a torch.export program, cleaned: every string must be of the kind that its place allows.

torch turns many of these strings into Python that it runs: symbolic expressions through sympy, node names and
argument names in generated functions, operator names through attribute look-ups that end in a call. What is not
known here is refused. Dropped are stack traces, guards and other notes that the export does not need.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable
from typing import Any


class RefusedError(Exception):
    """A string or number no exporter writes; the message says which, without the file's name."""


_NAME = re.compile(r"[A-Za-z_]\w*|", re.ASCII)
_DOTTED = re.compile(r"[\w .:/@+\-]*", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?|-?Infinity|NaN", re.ASCII)
_WORD = re.compile(r"[\w.+<=\-]*", re.ASCII)

_NAMESPACES = ("aten", "prims", "quantized_decomposed", "torchvision")
_OPERATOR = re.compile(rf"torch\.ops\.({'|'.join(_NAMESPACES)})\.([A-Za-z_]\w*)\.([A-Za-z]\w*)", re.ASCII)
_OTHER_OPERATORS = re.compile(
    r"torch\.ops\.higher_order\.(cond|while_loop|map_impl|scan|associative_scan|wrap_with_set_grad_enabled"
    r"|wrap_with_autocast|auto_functionalized|auto_functionalized_v2|strict_mode|out_dtype|invoke_subgraph)"
    r"|torch\.(_sym_sqrt|sym_(int|float|ite|max|min|not|sum|sqrt))"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|getitem|lshift|rshift)"
    r"|math\.(ceil|floor|trunc|sqrt|pow|log2|exp)",
    re.ASCII,
)
_DUNDER = re.compile(r"__i?(and|or|xor|lshift|rshift)__")
_TOUCHES_FILES = ("from_file", "save", "load")

_FUNCTION = re.compile(
    r"Symbol|Integer|Float|Rational|Add|Mul|Pow|Max|Min|Abs|Mod|floor|ceiling|Piecewise|ExprCondPair|And|Or|Not"
    r"|Eq|Ne|Lt|Le|Gt|Ge|Equality|Unequality|StrictLessThan|LessThan|StrictGreaterThan|GreaterThan"
    r"|FloorDiv|ModularIndexing|Where|PythonMod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|LShift|RShift|PowByNatural"
    r"|FloatPow|FloatTrueDiv|IntTrueDiv|IsNonOverlappingAndDenseIndicator|TruncToFloat|TruncToInt|RoundToInt"
    r"|RoundDecimal|ToFloat|Identity"
)
_ASSUMPTIONS = frozenset(
    ("integer", "positive", "nonnegative", "nonzero", "negative", "real", "finite", "extended_real", "precision")
)
_SYMBOL = re.compile(r"(s|u|zuf|zf|f)\d+|true|false|True|False|oo|int_oo|zoo", re.ASCII)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)
_LONGEST_EXPRESSION = 4096

_TREES = frozenset(("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", "torch.Size"))

# bytes per element by torch's ScalarType number
_ITEM_BYTES = {0: 1, 1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2, 28: 2}
_ITEM_BYTES |= dict.fromkeys(range(29, 34), 1) | {34: 4, 35: 8}


def clean_program(program: Any) -> Any:
    """A copy of ``models/model.json`` in which every string was checked, without traces and guards.

    Raises:
        RefusedError: names the string that no exporter writes.
    """
    if not isinstance(program, dict):
        raise RefusedError("its program is not a JSON object")
    return {**_clean_dict(program, ""), "guards_code": []}


def clean_payloads(config: Any, prefix: str) -> dict[str, Any]:
    """A copy of a weights or constants table: member names, shapes and types checked, nothing pickled.

    Raises:
        RefusedError: an entry is pickled, has an unusual member name or shape.
    """
    entries = config.get("config") if isinstance(config, dict) else None
    if not isinstance(entries, dict):
        raise RefusedError("its table of weights is not what torch writes")
    cleaned: dict[str, Any] = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("tensor_meta"), dict) or entry.get("use_pickle"):
            raise RefusedError(f"its weight {_short(name)} is pickled, and unpickling runs code")
        member = entry.get("path_name")
        if not isinstance(member, str) or not re.fullmatch(rf"{prefix}\d{{1,9}}", member, re.ASCII):
            raise RefusedError(f"its weight {_short(name)} is stored as {_short(member)}")
        cleaned[_match(_DOTTED, name, "name")] = {
            "path_name": member,
            "is_param": bool(entry.get("is_param")),
            "use_pickle": False,
            "tensor_meta": _clean(entry["tensor_meta"], "tensor_meta"),
        }
    return {"config": cleaned}


def wrong_size(config: dict[str, Any], member: str, held: int) -> str | None:
    """Why the bytes of a member do not carry the tensors that point into it; None when they do."""
    for name, entry in config["config"].items():
        if entry["path_name"] != member:
            continue
        meta = entry["tensor_meta"]
        try:
            sizes, strides = ([int(d["as_int"]) for d in meta[key]] for key in ("sizes", "strides"))
            offset, item = int(meta["storage_offset"]["as_int"]), _ITEM_BYTES[meta["dtype"]]
        except (KeyError, TypeError, ValueError):
            return f"its weight {_short(name)} has no plain shape"
        elements = math.prod(sizes)
        extent = offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))
        if min([*sizes, *strides, offset], default=0) < 0 or len(sizes) != len(strides):
            return f"its weight {_short(name)} has a negative size"
        if held % item or (elements and (extent * item > held or elements * item > 16 * held)):
            return f"its weight {_short(name)} has the shape {sizes}, its member {member} only {held} bytes"
    return None


def _clean_dict(value: dict[str, Any], place: str) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for key, item in value.items():
        if key == "metadata":
            cleaned[key] = {}
        elif key == "guards_code":
            continue
        elif key in ("as_device", "device") and isinstance(item, dict):
            # The place where the network was trained means nothing here, and may not exist.
            cleaned[key] = {"type": "cpu", "index": None}
        elif key in ("as_custom_obj", "custom_obj"):
            raise RefusedError("its program uses a custom object, which would be unpickled")
        elif place == "range_constraints":
            cleaned[_expression(key)] = _clean(item, key)
        elif place == "treespec_namedtuple_fields":
            cleaned[_match(_DOTTED, key, "name")] = _clean(item, key)
        else:
            cleaned[_match(_NAME if place != "config" else _DOTTED, key, "key")] = _clean(item, key)
    return cleaned


def _clean(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return _clean_dict(value, key)
    if isinstance(value, list):
        return [_clean(item, key) for item in value]
    if isinstance(value, str):
        check = _STRINGS.get(key)
        if check is None:
            raise RefusedError(f"its program has the text {_short(value)} as {_short(key)}")
        return check(value)
    return value


def _match(pattern: re.Pattern[str], text: Any, what: str) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise RefusedError(f"its program has the {what} {_short(text)}")
    return text


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    return lambda text: _match(pattern, text, what)


def _operator(text: str) -> str:
    found = _OPERATOR.fullmatch(text)
    plain = found and (not found[2].startswith("__") or _DUNDER.fullmatch(found[2]))
    if found and plain and found[2] not in _TOUCHES_FILES:
        return text
    return _match(_OTHER_OPERATORS, text, "operator")


def _tree(text: str) -> str:
    """A pytree description: tuples, lists and dicts of named leaves."""
    try:
        protocol, tree = json.loads(text)
    except (ValueError, TypeError) as error:
        raise RefusedError(f"its program has the structure {_short(text)}") from error
    pending = [tree]
    while pending:
        node = pending.pop()
        if not isinstance(node, dict) or set(node) != {"type", "context", "children_spec"}:
            raise RefusedError(f"its inputs or outputs have the structure {_short(node)}")
        children = node["children_spec"]
        if not (node["type"] is None or node["type"] in _TREES) or not isinstance(children, list):
            raise RefusedError(f"its inputs or outputs have the structure {_short(node['type'])}")
        context = node["context"]
        try:
            context = json.loads(context) if isinstance(context, str) else context
        except ValueError as error:
            raise RefusedError(f"its program has the structure {_short(node['context'])}") from error
        if context is not None:
            if not isinstance(context, list):
                raise RefusedError(f"its program has the structure {_short(context)}")
            for item in context:
                if not isinstance(item, int):
                    _match(_DOTTED, item, "name")
        pending.extend(children)
    if protocol != 1:
        raise RefusedError(f"its program has a structure of version {_short(protocol)}")
    return json.dumps([1, tree])


def _expression(text: str) -> str:
    """A symbolic size: sums, products and known functions of symbols and numbers."""
    try:
        if len(text) > _LONGEST_EXPRESSION:
            raise SyntaxError
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise RefusedError(f"its program has the expression {_short(text)}") from error
    if not _is_plain(tree):
        raise RefusedError(f"its program has the expression {_short(text)}")
    return text


def _is_plain(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool() | float()):
            return True
        case ast.Constant(value=int() as number):
            return abs(number) < 2**64
        case ast.Name(id=name):
            return _SYMBOL.fullmatch(name) is not None
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not() | ast.Invert()):
            return _is_plain(node.operand)
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=int() as power)):
            return 0 <= power <= 8 and isinstance(node.left, ast.Name) and _is_plain(node.left)
        case ast.BinOp() if isinstance(node.op, _ARITHMETIC):
            return _is_plain(node.left) and _is_plain(node.right)
        case ast.Compare():
            return all(_is_plain(n) for n in (node.left, *node.comparators))
        case ast.Call(func=ast.Name(id=name)) if _FUNCTION.fullmatch(name):
            return _is_plain_call(name, node)
    return False


def _is_plain_call(name: str, node: ast.Call) -> bool:
    for keyword in node.keywords:
        if keyword.arg not in _ASSUMPTIONS or not isinstance(keyword.value, ast.Constant):
            return False
        if not isinstance(keyword.value.value, bool) and keyword.arg != "precision":
            return False
    arguments = list(node.args)
    if arguments and isinstance(arguments[0], ast.Constant) and isinstance(text := arguments[0].value, str):
        # Elsewhere sympy would evaluate the text inside the quotes.
        pattern = {"Symbol": _NAME, "Float": _NUMBER}.get(name)
        return len(arguments) == 1 and pattern is not None and bool(pattern.fullmatch(text)) and len(text) < 64
    if name in ("Pow", "PowByNatural", "FloatPow", "LShift"):
        # A tower of powers would fill the memory.
        symbol, power = (ast.unparse(a) for a in arguments) if len(arguments) == 2 else ("", "")
        small = re.fullmatch(r"-?[0-8]|Integer\(-?[0-8]\)", power)
        return bool(small) and symbol.startswith("Symbol(") and _is_plain(arguments[0])
    return all(_is_plain(argument) for argument in arguments)


def _short(text: Any) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."


_name, _dotted = _matching(_NAME, "name"), _matching(_DOTTED, "name")
_STRINGS: dict[str, Callable[[str], str]] = {
    "target": _operator,
    "as_operator": _operator,
    "expr_str": _expression,
    "in_spec": _tree,
    "out_spec": _tree,
    **dict.fromkeys(("name", "as_name", "forward_arg_names", "field_names", "user_input_name"), _name),
    **dict.fromkeys(("parameter_name", "buffer_name", "tensor_constant_name", "fqn"), _dotted),
    **dict.fromkeys(("as_float", "as_floats", "as_float_lists", "real", "imag"), _matching(_NUMBER, "number")),
    **dict.fromkeys(("verifiers", "torch_version"), _matching(_WORD, "word")),
    # Arguments of operators reach generated code as quoted literals.
    **dict.fromkeys(("as_string", "as_strings"), str),
}
