"""A plan as a straight line of Python: kernels launched, ATen called, each value dropped after its last use."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx import Node

from onepass.build import Built, Plan
from onepass.capture.attention_op import attention
from onepass.capture.launch import launch_plan
from onepass.capture.normalize import Captured, is_view
from onepass.capture.sizes import is_data_dependent, shares_elements, size
from onepass.ir.cluster import Call
from onepass.ir.symbol import Poly, Size
from onepass.runtime.allocate import allocator, dispatched

Runner = Callable[[list[Any]], Any]

# Kernels know nothing of tangents, and Dynamo does not compile anew where a level of forward-mode AD begins.
_TANGENTS = ("if forward_ad._current_level >= 0:", "    return plain(*arguments)")


@dataclass(frozen=True)
class Compiled:
    """A runnable plan, the Python text that runs it, and where in the text's scope each kernel's launcher is."""

    plan: Plan
    run: Runner
    text: str
    scope: dict[str, Any]
    launchers: tuple[str, ...]


def compile_runner(plan: Plan, captured: Captured, in_place: Mapping[str, str] | None = None) -> Compiled:
    """The boxed callable of a plan: it takes a list of arguments, empties it, and returns the graph's outputs.

    ``in_place`` says whose memory results take; without it each has its own.
    """
    writer = _Writer(plan, captured, in_place or {})
    text = writer.text()
    scope = writer.scope
    exec(compile(text, "<onepass runner>", "exec"), scope)
    run = scope["run"]
    run._boxed_call = True
    return Compiled(plan, run, text, scope, tuple(writer.launchers))


class _Writer:
    def __init__(self, plan: Plan, captured: Captured, in_place: Mapping[str, str]) -> None:
        self.plan = plan
        self.in_place = in_place
        self.captured = captured
        self.graph = captured.graph
        self.nodes = {n.name: n for n in self.graph.graph.nodes}
        self.scope: dict[str, Any] = {
            "restrided": restrided,
            "math": math,  # what sizes that are no polynomials are spelled with
            "torch": torch,
            "forward_ad": forward_ad,
            "plain": self.graph.forward,
        }
        self.lines: list[tuple[str, list[str]]] = []  # a line, and the variables it needs
        self.made: set[str] = set()
        self.walks: dict[str, str] = {}  # the text of a view → its variable
        self.returned = set(self.graph.graph.output_node().all_input_nodes)
        self.kept: set[str] = set()  # tensors that belong to the graph: not the run's to let go of
        self.launchers: list[str] = []
        self.gpu = _only_gpu(plan)

    def text(self) -> str:
        self.inputs()
        for item in self.plan.items:
            if isinstance(item, Call):
                self.call(item)
            else:
                self.kernel(item)
        self.output()
        lines = [*_TANGENTS, *self.on_gpu(), *self.with_deletes()]
        return "def run(arguments):\n" + "".join(f"    {line}\n" for line in lines)

    def on_gpu(self) -> list[str]:
        """Lines that make the one GPU of all kernels the current one and look up its stream, once for all of them."""
        if self.gpu is None:
            return []
        self.scope["current_device"] = torch._C._cuda_getDevice
        self.scope["current_stream"] = torch._C._cuda_getCurrentRawStream
        return [
            f"if current_device() != {self.gpu}:",
            f"    with torch.cuda.device({self.gpu}): return run(arguments)",
            f"stream = current_stream({self.gpu})",
        ]

    def put(self, line: str, uses: Iterable[str] = ()) -> None:
        self.lines.append((line, list(uses)))

    def with_deletes(self) -> list[str]:
        last: dict[str, int] = {}
        for i, (_, uses) in enumerate(self.lines):
            last.update((name, i) for name in uses if name not in self.kept)
        out: list[str] = []
        for i, (line, _) in enumerate(self.lines):
            out.append(line)
            dead = sorted(n for n, at in last.items() if at == i and i < len(self.lines) - 1)
            if dead:
                out.append(f"del {', '.join(dead)}")
        return out

    # Inputs, outputs, sizes

    def inputs(self) -> None:
        holders = [n for n in self.graph.graph.nodes if n.op == "placeholder"]
        names = [variable(n.name) for n in holders]
        self.put(f"{', '.join(names)}{',' if names else ''} = arguments" if names else "pass")
        self.put("arguments.clear()")
        self.made.update(names)
        known: set[str] = set()
        for n in holders:
            for source, value in _sizes(n):
                symbol = size(value)
                if isinstance(symbol, Poly) and len(symbol.terms) == 1 and symbol.terms[0][1] == 1:
                    (only,) = symbol.terms[0][0][:1]
                    if len(symbol.terms[0][0]) == 1 and only not in known and re.fullmatch(r"\w+", only):
                        known.add(only)
                        self.put(f"{only} = {source}")
        for n in self.graph.graph.nodes:
            if n.op == "get_attr":
                self.scope[variable(n.name)] = operator.attrgetter(str(n.target))(self.graph)
                self.made.add(variable(n.name))
                self.kept.add(variable(n.name))

    def spell(self, value: Size) -> str:
        """A size as a Python expression over what `inputs` set."""
        if not isinstance(value, Poly):
            return str(value)
        return self.atom(str(value)) if value.names == {str(value)} else value.text(self.atom)

    def spelled(self, numbers: Iterable[int | torch.SymInt]) -> str:
        """Sizes or strides as a Python tuple."""
        found = ", ".join(self.spell(size(n)) for n in numbers)
        return f"({found},)" if found else "()"

    def atom(self, symbol: str) -> str:
        return symbol if re.fullmatch(r"\w+", symbol) else f"({symbol})"

    def output(self) -> None:
        uses: list[str] = []
        value = self.graph.graph.output_node().args[0]
        text = self.argument(value, uses)
        self.put(f"return {text}", uses)

    # Items

    def kernel(self, built: Built) -> None:
        uses: list[str] = []
        for store in built.cluster.stores:
            self.allocate(store.tensor, built.cluster.device)
        k = f"k{len(self.scope)}"
        launcher = launch_plan(built)
        at_once = launcher.at_once if self.gpu is not None else None
        self.scope[k] = at_once or launcher.call
        self.launchers.append(k)
        values = ["stream"] if at_once else []
        values += [self.spell(s) for s in launcher.sizes]
        for f in built.source.block:
            if f.kind == "pointer":
                name = self.tensor(f.tensor, uses)
                offset = self.spell(f.size)
                values.append(f"{name}.data_ptr()" + ("" if offset == "0" else f" + {offset}"))
            elif f.kind == "size":
                values.append(self.spell(f.size))
        self.put(f"{k}({', '.join(values)})", uses)

    def allocate(self, tensor: str, device: str) -> None:
        if variable(tensor) in self.made:
            return
        fake = self.fake(tensor)
        sizes, strides = self.spelled(fake.shape), self.spelled(fake.stride())
        self.made.add(variable(tensor))
        if tensor in self.in_place:
            uses: list[str] = []
            source, was = self.tensor(self.in_place[tensor], uses), self.fake(self.in_place[tensor])
            same = (sizes, strides) == (self.spelled(was.shape), self.spelled(was.stride()))
            self.put(
                f"{variable(tensor)} = {source}" + ("" if same else f".as_strided({sizes}, {strides})"), uses
            )
            return
        empty = f"empty_{ident(device)}"
        if empty not in self.scope:
            on = torch.device(device)
            self.scope[empty] = allocator(on) if on.index in (None, self.gpu) else dispatched(on)
        self.put(f"{variable(tensor)} = {empty}({sizes}, {strides}, {self.constant(fake.dtype)})")

    def call(self, call: Call) -> None:
        node = self.nodes[call.name]
        if call.bare:
            self.evaluate(node, overload(call.target), node.args[1:])
        else:
            self.evaluate(node)

    def evaluate(self, node: Node, target: Any = None, args: tuple[Any, ...] | None = None) -> str:
        """A line that calls a node's ATen op, or ``target`` with ``args`` in its place; its variable."""
        name = variable(node.name)
        if name in self.made:
            return name
        uses: list[str] = []
        arguments = [self.argument(a, uses) for a in (node.args if args is None else args)]
        arguments += [f"{k}={self.argument(v, uses)}" for k, v in node.kwargs.items()]
        self.put(f"{name} = {self.constant(direct(target or node.target))}({', '.join(arguments)})", uses)
        self.made.add(name)
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and not is_view(node):
            self.check_strides(fake, name)
        return name

    def check_strides(self, fake: torch.Tensor, name: str) -> None:
        """What PyTorch returns is laid out as the capture said, and of that dtype, or is made so: kernels trust it.

        PyTorch's capture says of a training batch norm that its statistics of 16 bits become fp32, and they don't.
        """
        if fake.layout is not torch.strided or fake.dim() == 0:
            return
        if not is_data_dependent(*fake.shape) and not shares_elements(fake):  # no kernel reads those
            strides = self.spelled(fake.stride())
            dtype = self.constant(fake.dtype)
            other = f"{name}.stride() != {strides} or {name}.dtype is not {dtype}"
            self.put(f"if {other}: {name} = restrided({name}, {strides}, {dtype})", [name])

    def part(self, node: Node, index: int) -> str:
        """The variable of one of the values that a node returns."""
        name = variable(f"{node.name}.{index}")
        if name not in self.made:
            uses: list[str] = []
            whole = self.value(node, uses)
            self.put(f"{name} = {whole}[{index}]", uses)
            self.made.add(name)
            fake = node.meta["val"][index]
            if isinstance(fake, torch.Tensor) and not is_view(node):
                self.check_strides(fake, name)
        return name

    # Values

    def tensor(self, name: str, uses: list[str]) -> str:
        """The variable of a tensor in memory, by the name the program gives it."""
        var = variable(name)
        if var not in self.made:
            base, _, index = name.rpartition(".")
            if base:
                self.part(self.nodes[base], int(index))
            else:
                self.evaluate(self.nodes[name])
        uses.append(var)
        return var

    def value(self, node: Node, uses: list[str]) -> str:
        """The variable of an FX node: views and aliases are made when something needs them."""
        target = self.captured.alias.get(node.name)
        if target is not None:
            return self.value(self.nodes[target], uses)
        name = variable(node.name)
        if name not in self.made:
            if node.target is operator.getitem:
                source, index = node.args
                name = self.part(source, index)  # type: ignore[arg-type]
            else:
                name = self.walked(node) or self.evaluate(node)
        uses.append(name)
        return name

    def walked(self, node: Node) -> str | None:
        """The variable of a chain of views made in one step, one for all that walk alike; None where that can't be.

        A call of PyTorch is 60 to 120 µs where a matmul has just had the caches (Zen 3, torch 2.13, 2026-11-30), and a
        layer of BERT has 24 views.
        """
        root = node
        while is_view(root):
            root = root.args[0]  # type: ignore[assignment]
        fake: Any = node.meta.get("val")
        if node in self.returned or root is node or not _walks(fake, root.meta.get("val")):
            return None  # what is returned is made by its own op: not every one makes a view
        uses: list[str] = []
        source = self.value(root, uses)
        sizes, strides = (self.spelled(numbers) for numbers in (fake.shape, fake.stride()))
        walk = f"{source}.as_strided({sizes}, {strides})"
        if walk not in self.walks:
            self.walks[walk] = variable(node.name)
            self.put(f"{self.walks[walk]} = {walk}", uses)
        self.made.add(self.walks[walk])
        return self.walks[walk]

    def argument(self, value: Any, uses: list[str]) -> str:
        if isinstance(value, Node):
            return self.value(value, uses)
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self.argument(v, uses) for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
        if isinstance(value, (int, bool, str, type(None))):
            return repr(value)
        return self.constant(value)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name

    def fake(self, tensor: str) -> torch.Tensor:
        base, _, part = tensor.rpartition(".")
        value: Any = self.nodes[tensor if tensor in self.nodes else base].meta["val"]
        found: torch.Tensor = value if tensor in self.nodes else value[int(part)]
        return found


def _only_gpu(plan: Plan) -> int | None:
    """The GPU of all of a plan's kernels; None where they are of several, or of none."""
    devices = {torch.device(built.cluster.device) for built in plan.kernels}
    (index,) = {d.index for d in devices} if len(devices) == 1 else {None}
    return index if {d.type for d in devices} == {"cuda"} else None


def overload(name: str) -> Any:
    """The ATen op of a name such as ``mm.default``."""
    return operator.attrgetter(name)(torch.ops.aten)


def direct(op: Any) -> Callable[..., Any]:
    """An op without the Python around it; attention, our own, also without the dispatcher.

    Neither is missed: what the graph runs needs no gradients, and autocast had done its casts when it was captured.
    """
    if str(op) == "onepass.attention.default":
        return attention
    return getattr(op, "_op", op)  # type: ignore[no-any-return]


def variable(name: str) -> str:
    """``max_1.0`` is a part of ``max_1``, and another variable than that of the node ``max_1_0``."""
    base, _, part = name.rpartition(".")
    return f"p{part}_{ident(base)}" if base else f"v_{ident(name)}"


def ident(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _walks(fake: Any, base: Any) -> bool:
    """Whether a tensor is a walk through another from its first element, which itself lies as the capture says."""
    if not isinstance(fake, torch.Tensor) or not isinstance(base, torch.Tensor) or fake.is_complex():
        return False
    if {fake.layout, base.layout} != {torch.strided} or fake.dtype != base.dtype:
        return False
    if is_data_dependent(*fake.shape, *fake.stride(), *base.shape) or shares_elements(base):
        return False
    same = fake.untyped_storage()._cdata == base.untyped_storage()._cdata  # a reshape may have copied
    return same and bool(size(fake.storage_offset()) == size(base.storage_offset()))


def _sizes(node: Node) -> list[tuple[str, Any]]:
    fake = node.meta.get("val")
    name = variable(node.name)
    if isinstance(fake, torch.SymInt):
        return [(name, fake)]
    if isinstance(fake, torch.Tensor):
        sizes = [(f"{name}.shape[{i}]", s) for i, s in enumerate(fake.shape)]
        strides = enumerate(fake.stride() if fake.layout is torch.strided else ())
        return [
            (where, s)
            for where, s in (*sizes, *((f"{name}.stride({i})", s) for i, s in strides))
            if isinstance(s, torch.SymInt)
        ]
    return []


def restrided(x: torch.Tensor, strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A copy laid out with other strides, or of another dtype."""
    return torch.empty_strided(x.shape, strides, dtype=dtype, device=x.device).copy_(x)
