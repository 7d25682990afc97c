"""The child that runs cases, and the parent that counts."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

NAMED = 40
"""How many cases of a kind are named."""


def main(arguments: list[str], text: str, script: Path) -> int:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this word")
    parser.add_argument("--lower", default="19,17,16,13", help="opsets, comma-joined; empty for none")
    parser.add_argument("--no-light", action="store_true", help="leave the light models out")
    parser.add_argument("--json", type=Path, help="write all verdicts there")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        return _child(options)
    return _parent(options, arguments, script)


def _parent(options: argparse.Namespace, arguments: list[str], script: Path) -> int:
    started, first = time.monotonic(), 0
    verdicts: dict[str, dict[str, Any]] = {}
    while True:
        command = [sys.executable, str(script), *arguments, "--child", str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            assert child.stdout is not None
            current = None
            for line in child.stdout:
                if line.startswith("begin "):
                    current, first = line[6:].strip(), first + 1
                elif line.startswith("{"):
                    verdicts[str(current)] = json.loads(line)
                    current = None
        if child.returncode == 0:
            break
        if current is None:
            print(f"the child ended with {child.returncode} outside a case", file=sys.stderr)
            return 1
        verdicts[current] = {"state": "crash", "why": f"the process ended with {child.returncode}", "lowered": {}}
    if options.json is not None:
        options.json.write_text(json.dumps(verdicts, indent=1, sort_keys=True))
    _report(verdicts)
    print(f"\n{time.monotonic() - started:.0f} s")
    bad = [v for v in verdicts.values() if v["state"] in ("different", "crash")]
    return int(bool(bad) or not verdicts)


def _report(verdicts: dict[str, dict[str, Any]]) -> None:
    states = collections.Counter(v["state"] for v in verdicts.values())
    changed = sum(bool(v.get("changes")) for v in verdicts.values())
    words = {"random": "random by definition", "unrunnable": "not runnable here, passes did not fail"}
    print(f"{len(verdicts)} cases; {changed} of them changed by a pass")
    for state in ("equal", "refused", "random", "unrunnable", "different", "crash"):
        print(f"  {states[state]:5d}  {words.get(state, state)}")
    _histogram("refused by the loader", [v["why"] for v in verdicts.values() if v["state"] == "refused"])
    opsets = sorted({o for v in verdicts.values() for o in v["lowered"]}, key=int, reverse=True)
    for opset in opsets:
        found = [v["lowered"][opset] for v in verdicts.values() if opset in v["lowered"]]
        kept = sum(f == "low enough" for f in found)
        done = sum(f == "lowered" for f in found)
        refused = [re.sub(r"\([^()]*\)$|1 candidate refused: ", "", f).strip() for f in found]
        refused = [r for r in refused if r not in ("low enough", "lowered")]
        print(f"\nopset {opset}: {done} lowered and equal, {kept} low enough, {len(refused)} refused with a reason")
        _histogram("", refused, most=12)
    theirs = {n: v["standard"] for n, v in verdicts.items() if v.get("standard")}
    if theirs:
        print("\nequal to the standard after a pass, where the runtime is not with the original:")
    for name, passes in sorted(theirs.items()):
        print(f"  {name}: {', '.join(passes)}")
    for state in ("different", "crash", "random"):
        names = sorted(n for n, v in verdicts.items() if v["state"] == state)
        if names:
            print(f"\n{words.get(state, state)}:")
        for name in names[:NAMED]:
            print(f"  {name}: {verdicts[name]['why']}" if verdicts[name]["why"] else f"  {name}")
        if len(names) > NAMED:
            print(f"  and {len(names) - NAMED} more")


def _histogram(title: str, reasons: list[str], most: int = 30) -> None:
    if reasons and title:
        print(f"\n{title}:")
    counted = collections.Counter(reasons).most_common()
    for reason, count in counted[:most]:
        print(f"  {count:5d}  {reason[:110]}")
    if len(counted) > most:
        print(f"  {sum(c for _, c in counted[most:]):5d}  for {len(counted) - most} other reasons")


def _child(options: argparse.Namespace) -> int:
    from _conformance.walk import Verdict, walk

    opsets = [int(o) for o in options.lower.split(",") if o]
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        for index, (name, make) in enumerate(_cases(options)):
            if index < options.child:
                continue
            print(f"begin {name}", flush=True)
            proto, feeds, expected = make()
            try:
                verdict = walk(proto, feeds, expected, Path(folder), opsets)
            except Exception as error:  # noqa: BLE001 - a crash of any kind is what this program looks for
                lines = str(error).strip().splitlines() or [""]
                verdict = Verdict(state="crash", why=f"{type(error).__name__}: {lines[0][:200]}")
            print(json.dumps(dataclasses.asdict(verdict)), flush=True)
    return 0


def _cases(options: argparse.Namespace) -> list[tuple[str, Any]]:
    """Names, and what makes model, inputs and expected outputs."""
    import onnx.backend.test.case.node as node_cases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [(c.name, lambda c=c: _node_case(c)) for c in node_cases.collect_testcases(None)]
    if not options.no_light:
        folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
        cases += [(p.stem, lambda p=p: _light_model(p)) for p in sorted(folder.glob("*.onnx"))]
    return [c for c in cases if options.only in c[0]]


def _node_case(case: Any) -> tuple[onnx.ModelProto, dict[str, Any], list[Any]]:
    inputs, outputs = case.data_sets[0]
    feeds = {i.name: _array(v) for i, v in zip(case.model.graph.input, inputs)}
    return case.model, feeds, [_array(v) for v in outputs]


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, list) or value is None else np.asarray(value)


def _light_model(path: Path) -> tuple[onnx.ModelProto, dict[str, Any], None]:
    """Fill the weights with noise whose scale keeps activations of the same size from layer to layer."""
    proto = onnx.load(path)
    graph, rng = proto.graph, np.random.default_rng(0)
    variances = {n.input[4] for n in graph.node if n.op_type == "BatchNormalization"}
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in [n for n in graph.node if n.op_type == "ConstantOfShape" and n.input[0] in shapes]:
        name, shape = node.output[0], [int(d) for d in shapes[node.input[0]]]
        spread = 1 / np.sqrt(max(1, np.prod(shape[1:]))) if len(shape) > 1 else 0.1
        array = rng.normal(0, spread, shape) if name not in variances else rng.uniform(0.5, 2, shape)
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))  # as IR version 3 asks
        graph.node.remove(node)
    given = {t.name for t in graph.initializer}
    feeds = {}
    for value in graph.input:
        if value.name not in given:
            dims = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
            feeds[value.name] = rng.normal(size=dims).astype(np.float32)
    return proto, feeds, None
