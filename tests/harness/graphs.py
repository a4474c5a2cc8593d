"""Random graphs over the op table, as the text of a PyTorch function with inputs.

A graph is made line by line, and each line is run at once, in its own dtypes and in float64, so that what is written is
always valid, finite and inside each op's domain. Ops that jump (comparisons, rounding to integers) are only given values
that every arithmetic gets exactly: inputs, and what selects or moves them. Elsewhere a rounding error could decide, and no
error bound would hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F

T = TypeVar("T")

FLOATS = ("float32", "bfloat16", "float16")
LAYOUTS = ("contiguous", "permuted", "sliced", "stepped", "offset", "expanded")
INTS = ("int64", "int32", "int16", "int8", "uint8")
# Values stay far from where float16 overflows (65504), so that eager's own result is a number at every dtype.
LARGEST = 2000.0
MOST_ELEMENTS = 4096  # of one value: the interpreter and the emulator take microseconds an element


class Chooser(Protocol):
    """Where choices come from: hypothesis in tests, so that a failing graph shrinks."""

    def integer(self, low: int, high: int) -> int: ...


@dataclass(frozen=True)
class Input:
    """A tensor by recipe: the same each time it is made."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str  # contiguous, permuted, sliced, stepped, offset, expanded
    low: float
    high: float
    seed: int

    def make(self) -> torch.Tensor:
        g = torch.Generator().manual_seed(self.seed)
        x = self._lay_out(lambda shape: self._values(shape, g))
        assert tuple(x.shape) == self.shape
        return x

    def _values(self, shape: Sequence[int], g: torch.Generator) -> torch.Tensor:
        if self.dtype == "bool":
            return torch.rand(tuple(shape), generator=g) < 0.5
        if self.dtype in INTS:
            return torch.randint(int(self.low), int(self.high), tuple(shape), generator=g).to(
                getattr(torch, self.dtype)
            )
        # A mean away from zero shows lanes that are counted but not masked.
        x = torch.rand(tuple(shape), generator=g, dtype=torch.float64) * (self.high - self.low) + self.low
        return x.to(getattr(torch, self.dtype))

    def _lay_out(self, values: Callable[[Sequence[int]], torch.Tensor]) -> torch.Tensor:
        shape = self.shape
        if self.layout == "permuted":
            order = list(reversed(range(len(shape))))
            return values([shape[d] for d in order]).permute(order)
        if self.layout == "sliced":  # as one of three in a packed tensor
            return values([*shape[:-1], 3 * shape[-1]])[..., shape[-1] : 2 * shape[-1]]
        if self.layout == "stepped":
            return values([*shape[:-1], 2 * shape[-1]])[..., ::2]
        if self.layout == "offset":  # one element off any alignment
            n = 1
            for s in shape:
                n *= s
            return values([n + 1])[1:].view(shape)
        if self.layout == "expanded":
            return values([1, *shape[1:]]).expand(shape)
        return values(shape)

    def __str__(self) -> str:
        return f"# {self.name}: {self.dtype} {list(self.shape)} {self.layout} in [{self.low}, {self.high}] seed {self.seed}"


@dataclass(frozen=True)
class Graph:
    """A function and its inputs."""

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]

    def text(self) -> str:
        names = ", ".join(i.name for i in self.inputs)
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def graph({names}):\n{body}    return {', '.join(self.outputs)},\n"

    def __repr__(self) -> str:
        return "\n" + "".join(f"{i}\n" for i in self.inputs) + self.text()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # as hypothesis shows what failed

    def function(self, wide: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function; ``wide`` reads float64 wherever the text names a floating-point dtype."""
        scope = scope_of(wide)
        exec(self.text(), scope)
        function: Callable[..., tuple[torch.Tensor, ...]] = scope["graph"]
        return wide_default()(function) if wide else function

    def tensors(self) -> list[torch.Tensor]:
        return [i.make() for i in self.inputs]


@contextmanager
def wide_default() -> Iterator[None]:
    """Integers divided, and tensors made from numbers, are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def scope_of(wide: bool) -> dict[str, Any]:
    def dt(name: str) -> torch.dtype:
        found: torch.dtype = getattr(torch, name)
        return torch.float64 if wide and found.is_floating_point else found

    return {"torch": torch, "F": F, "dt": dt, "aten": torch.ops.aten, "prims": torch.ops.prims}


class Unusable(Exception):
    """The line that was tried can't be part of a graph."""


@dataclass(frozen=True)
class Var:
    """A value of the graph, with what it is at its dtype and in float64."""

    name: str
    value: torch.Tensor
    wide: torch.Tensor
    exact: bool  # the same number in every arithmetic

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def kind(self) -> str:
        return (
            "bool" if self.value.dtype == torch.bool else "float" if self.value.is_floating_point() else "int"
        )

    @property
    def dtype(self) -> str:
        return str(self.value.dtype).removeprefix("torch.")


@dataclass
class Writer:
    """A graph being written."""

    choose: Chooser
    dtype: str
    inputs: list[Input] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    pool: list[Var] = field(default_factory=list)
    scopes: tuple[dict[str, Any], dict[str, Any]] = field(
        default_factory=lambda: (scope_of(False), scope_of(True))
    )

    # Choices

    def pick(self, options: Sequence[T]) -> T:
        if not options:
            raise Unusable
        return options[self.choose.integer(0, len(options) - 1)]

    def chance(self, one_in: int) -> bool:
        return self.choose.integer(0, one_in - 1) == one_in - 1

    def number(self, low: float = -2.0, high: float = 2.0) -> float:
        """A number that every floating-point dtype holds exactly."""
        return self.choose.integer(int(low * 8), int(high * 8)) / 8

    # Values

    def input(
        self,
        shape: Sequence[int],
        dtype: str | None = None,
        low: float = -2.0,
        high: float = 3.0,
        layout: str | None = None,
    ) -> Var:
        if layout is None:
            layout = self.pick(("contiguous", *LAYOUTS)) if len(shape) and all(shape) else "contiguous"
        spec = Input(
            f"x{len(self.inputs)}",
            dtype or self.dtype,
            tuple(shape),
            layout,
            low,
            high,
            self.choose.integer(0, 255),
        )
        self.inputs.append(spec)
        x = spec.make()
        return self.known(spec.name, x, x.double() if x.is_floating_point() else x, True)

    def known(self, name: str, value: torch.Tensor, wide: torch.Tensor, exact: bool) -> Var:
        self.scopes[0][name], self.scopes[1][name] = value, wide
        var = Var(name, value, wide, exact)
        self.pool.append(var)
        return var

    def line(self, text: str, exact: bool = False) -> Var:
        """One more value, or Unusable where its numbers would leave what every dtype can hold."""
        try:
            value = eval(text, self.scopes[0])
            with wide_default():
                wide = eval(text, self.scopes[1])
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as e:
            raise Unusable(str(e)) from e
        if value.dtype == torch.float64 or value.dtype.is_complex or value.numel() > MOST_ELEMENTS:
            raise Unusable
        for v in (value, wide):
            if v.numel() and v.dtype != torch.bool and not bool((v.double().abs() < LARGEST).all()):
                raise Unusable
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return self.known(name, value, wide, exact)

    def some(self, test: Callable[[Var], bool]) -> Var:
        """A value of the pool, the newest more often."""
        fitting = [v for v in self.pool if test(v)]
        if not fitting:
            raise Unusable
        return self.pick(fitting) if self.chance(5) else fitting[-1]

    def float(self) -> Var:
        return self.some(lambda v: v.kind == "float")

    def exact(self) -> Var:
        return (
            self.some(lambda v: v.exact and v.kind != "bool")
            if self.chance(2)
            else self.some(lambda v: v.exact and v.kind == "float")
        )

    def bool(self) -> Var:
        masks = [v for v in self.pool if v.kind == "bool"]
        if masks and not self.chance(3):
            return self.pick(masks)
        if self.chance(3):
            return self.input(self.float().shape, "bool")
        return self.line(f"{self.exact().name} > {self.number()}", True)

    def within(self, v: Var, low: float, high: float) -> Var:
        """The same value, clamped where it leaves low … high."""
        if v.value.numel() == 0 or (
            float(v.wide.double().min()) >= low and float(v.wide.double().max()) <= high
        ):
            return v
        return self.line(f"torch.clamp({v.name}, {low}, {high})", v.exact)

    def beside(
        self, v: Var, exact: bool = False, kind: str = "float", low: float = -2.0, high: float = 3.0
    ) -> Var:
        """A second operand: another value, or a new input of a shape that broadcasts."""
        if not self.chance(3):
            fitting = [
                o
                for o in self.pool
                if o.kind == kind and _broadcasts(v.shape, o.shape) and (o.exact or not exact)
            ]
            if fitting:
                return self.pick(fitting)
        kept = self.choose.integer(0, 3)
        shape = list(v.shape)
        if kept == 1:
            shape = shape[-1:]
        elif kept == 2 and shape:
            shape[-1] = 1
        elif kept == 3:
            shape = [s if self.chance(2) else 1 for s in shape]
        dtype = (
            self.pick(["float32", self.dtype])
            if kind == "float"
            else "bool"
            if kind == "bool"
            else self.pick(INTS)
        )
        if dtype == "uint8":
            low = 0.0
        return self.input(shape, dtype, low, high)

    def dims(self, v: Var) -> list[int]:
        """Neighbouring dimensions to reduce along."""
        if not v.shape:
            raise Unusable
        first = self.choose.integer(0, len(v.shape) - 1)
        last = self.choose.integer(first, len(v.shape) - 1) if self.chance(3) else first
        first = len(v.shape) - 1 if first == last and self.chance(2) else first
        return list(range(first, max(first, last) + 1))


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or x == 1 or y == 1 for x, y in zip(reversed(a), reversed(b), strict=False))


Step = Callable[[Writer], Any]


def unary(text: str, low: float = -1e9, high: float = 1e9) -> Step:
    def step(w: Writer) -> None:
        w.line(text.format(w.within(w.float(), low, high).name))

    return step


def exactly(text: str, kind: str = "", second: str = "", floats: bool = False) -> Step:
    """An op that every arithmetic gets right, of values that every arithmetic gets right."""

    def step(w: Writer) -> None:
        v = w.some(lambda v: v.exact and v.kind == kind) if kind else w.exact()
        if floats and v.kind != "float":
            raise Unusable
        other = (
            ""
            if not second
            else w.beside(v, exact=True, kind=v.kind).name
            if second == "tensor"
            else str(w.number())
            if v.kind == "float"
            else str(w.choose.integer(0 if v.dtype == "uint8" else -3, 3))
        )
        w.line(text.format(v.name, other), True)

    return step


def binary(text: str, low: float = -1e9, high: float = 1e9, below: float = -1e9, above: float = 1e9) -> Step:
    def step(w: Writer) -> None:
        v = w.within(w.float(), low, high)
        if w.chance(3):
            other = str(w.number(max(below, -2.0), min(above, 2.0)))
        else:
            other = w.within(w.beside(v, low=max(below, -2.0), high=min(above, 3.0)), below, above).name
        w.line(text.format(v.name, other))

    return step


def three(text: str, positive_last: bool = False) -> Step:
    def step(w: Writer) -> None:
        a = w.float()
        b, c = w.beside(a), w.beside(a)
        w.line(
            text.format(a.name, b.name, w.within(c, 0.5, 4.0).name if positive_last else c.name, w.number())
        )

    return step


def reduction(text: str, low: float = -1e9, high: float = 1e9) -> Step:
    def step(w: Writer) -> None:
        v = w.within(w.float(), low, high)
        dims = w.dims(v)
        if len(dims) > 1:
            v = w.line(f"{v.name}.contiguous()", v.exact)  # a group of dimensions is reduced along one stride
        keep = w.chance(2)
        r = w.line(text.format(v.name, dims, keep))
        if keep and w.chance(2):
            w.line(f"{v.name} - {r.name}" if w.chance(2) else f"{v.name} * {r.name}")

    return step


def norm(kind: str) -> Step:
    def step(w: Writer) -> None:
        v = w.float()
        if not v.shape:
            raise Unusable
        k = w.choose.integer(1, min(2, len(v.shape)))
        shape = v.shape[-k:]
        kept = list(shape)
        eps = w.pick(["2**-17", "2**-20", "2**-10"])  # PyTorch rounds eps to float32 before it is captured
        dtype = v.dtype if w.chance(2) else "float32"
        layout = w.pick(["contiguous", "offset"]) if k > 1 else None
        if k > 1:
            v = w.line(f"{v.name}.contiguous()", v.exact)
        weight = w.input(kept, dtype, 0.5, 2.0, layout).name if w.chance(2) else None
        bias = w.input(kept, dtype, layout=layout).name if kind == "layer" and w.chance(2) else None
        if kind == "layer":
            w.line(f"F.layer_norm({v.name}, {kept}, {weight}, {bias}, {eps})")
        else:
            w.line(f"F.rms_norm({v.name}, {kept}, {weight}, {eps})")

    return step


def softmax(text: str) -> Step:
    def step(w: Writer) -> None:
        v = w.within(w.float(), -30, 30)
        dim = w.choose.integer(0, max(0, len(v.shape) - 1))
        w.line(text.format(v.name, len(v.shape) - 1 if w.chance(2) and v.shape else dim))

    return step


def where(w: Writer) -> None:
    mask = w.bool()
    a = w.beside(mask)
    if w.chance(2):
        w.line(f"torch.where({mask.name}, {a.name}, {w.number()})", a.exact)
    else:
        b = w.beside(a)
        w.line(f"torch.where({mask.name}, {a.name}, {b.name})", a.exact and b.exact)


def masked_fill(w: Writer) -> None:
    a = w.float()
    mask = w.beside(a, kind="bool")
    w.line(f"{a.name}.masked_fill({mask.name}, {w.number()})", a.exact)


def logical(text: str, count: int) -> Step:
    def step(w: Writer) -> None:
        m = w.bool()
        other = w.beside(m, kind="bool").name if count == 2 else ""
        w.line(text.format(m.name, other), True)

    return step


def cast(text: str) -> Step:
    def step(w: Writer) -> None:
        v = w.some(lambda v: True)
        to = w.pick([d for d in FLOATS if d != v.dtype])
        wider = v.kind != "float" or to == "float32"
        w.line(text.format(v.name, to), v.exact and wider)

    return step


def cast_exact(to: str) -> Step:
    def step(w: Writer) -> None:
        v = w.exact()
        if v.dtype == to:
            raise Unusable
        w.line(f"{v.name}.to(dt('{to}'))", True)

    return step


def clone(w: Writer) -> None:
    v = w.some(lambda v: True)
    w.line(f"{v.name}.clone()", v.exact)


def embedding(w: Writer) -> None:
    v = w.float()
    rows = w.choose.integer(2, 7)
    ids = w.input(v.shape[:-1] if v.shape else (3,), w.pick(["int64", "int32"]), 0, rows, "contiguous")
    width = v.shape[-1] if v.shape else 5
    table = w.input(
        (rows, width), w.pick([w.dtype, "float32"]), layout=w.pick(["contiguous", "offset", "sliced"])
    )
    e = w.line(f"F.embedding({ids.name}, {table.name})", True)
    if v.shape and w.chance(2):
        w.line(f"{v.name} + {e.name}")


def cat(w: Writer) -> None:
    v = w.some(lambda v: len(v.shape) > 0 and v.kind == "float")
    dim = len(v.shape) - 1 if not w.chance(3) else w.choose.integer(0, len(v.shape) - 1)
    like = [
        o
        for o in w.pool
        if o.kind == "float"
        and len(o.shape) == len(v.shape)
        and all(x == y for d, (x, y) in enumerate(zip(o.shape, v.shape, strict=True)) if d != dim)
    ]
    pieces = [v]
    if w.chance(2):
        shape = list(v.shape)
        shape[dim] = w.choose.integer(1, 5)
        pieces.append(w.input(shape))
    pieces.append(w.pick(like))
    w.line(
        f"torch.cat([{', '.join(p.name for p in pieces)}], {dim})",
        all(p.exact for p in pieces) and len({p.dtype for p in pieces}) == 1,
    )


def rotary(w: Writer) -> None:
    v = w.some(lambda v: v.kind == "float" and len(v.shape) > 0 and v.shape[-1] % 2 == 0)
    half = v.shape[-1] // 2
    turned = w.line(f"torch.cat([-{v.name}[..., {half}:], {v.name}[..., :{half}]], -1)", v.exact)
    cos, sin = w.input(v.shape[-1:]), w.input(v.shape[-1:])
    w.line(f"{v.name} * {cos.name} + {turned.name} * {sin.name}")


def split(w: Writer) -> None:
    v = w.some(lambda v: v.kind == "float" and len(v.shape) > 0 and v.shape[-1] > 1)
    n = w.choose.integer(2, 3)
    if v.shape[-1] % n:
        a = w.choose.integer(1, v.shape[-1] - 1)
        w.line(f"torch.split({v.name}, [{a}, {v.shape[-1] - a}], -1)[{w.choose.integer(0, 1)}]", v.exact)
        return
    pieces = [w.line(f"{v.name}.chunk({n}, -1)[{i}]", v.exact) for i in range(2)]
    w.line(f"F.silu({pieces[0].name}) * {pieces[1].name}")


def view(w: Writer) -> None:
    v = w.some(lambda v: len(v.shape) > 0)
    rank = len(v.shape)
    d, e = w.choose.integer(0, rank - 1), w.choose.integer(0, rank - 1)
    n = v.shape[d]
    options = [
        f"{v.name}.transpose({d}, {e})",
        f"{v.name}.permute({list(reversed(range(rank)))})",
        f"{v.name}.unsqueeze({d})",
        f"{v.name}.reshape(-1)",
        f"{v.name}.reshape({v.shape[0]}, -1)" if v.shape[0] else f"{v.name}.reshape(-1)",
        f"torch.narrow({v.name}, {d}, {n // 3}, {max(1, n // 2)})",
        f"{v.name}.select({d}, {n - 1})",
        f"{v.name}.unsqueeze(0).expand({[w.choose.integer(1, 3), *v.shape]})",
        f"{v.name}{'[' + ':, ' * d}1::2]" if n > 1 else f"{v.name}.squeeze({d})",
        f"{v.name}.flatten({min(d, e)}, {max(d, e)})",
        f"{v.name}.unbind({d})[{n // 2}]",
        f"{v.name}.squeeze({d})",
    ]
    w.line(w.pick(options), v.exact)


def constant(text: str) -> Step:
    def step(w: Writer) -> None:
        v = w.float()
        shape = list(v.shape)
        w.line(f"{v.name} {w.pick('+*')} " + text.format(v.name, shape, w.number(), w.pick(FLOATS)))

    return step


def arange(w: Writer) -> None:
    v = w.some(lambda v: v.kind == "float" and len(v.shape) > 0)
    d = w.choose.integer(0, len(v.shape) - 1)
    start = w.choose.integer(-2, 3)
    shape = [-1] + [1] * (len(v.shape) - 1 - d)
    i = w.line(f"torch.arange({start}, {start + v.shape[d]}).reshape({shape})", True)
    if w.chance(2):
        w.line(f"torch.where({i.name} <= {w.choose.integer(0, 9)}, {v.name}, {w.number()})", v.exact)
    else:
        w.line(f"{v.name} + {i.name}")


def integers(text: str) -> Step:
    """Arithmetic is written for 64 bits: what wraps in fewer stays with PyTorch."""

    def step(w: Writer) -> None:
        pool = [v for v in w.pool if v.kind == "int"]
        v = w.pick(pool) if pool and w.chance(2) else w.input(w.float().shape, w.pick(INTS), 0, 9)
        w.line(text.format(v.name, w.beside(v, exact=True, kind="int", low=0, high=9).name), True)

    return step


# What each row of the vocabulary looks like in a program. A row that is missing here fails the coverage test.
STEPS: dict[str, tuple[Step, ...]] = {
    # Element-wise rows
    "copy": (clone,),
    "to_float": (cast("{0}.to(dt('{1}'))"), integers("{0} * 0.5"), integers("{0} / {1}.clamp(1, 3)")),
    "to_int": (cast_exact("int64"),),
    "to_bool": (cast_exact("bool"),),
    "add": (binary("{0} + {1}"), integers("{0}.long() + {1}")),
    "sub": (binary("{0} - {1}"),),
    "mul": (binary("{0} * {1}"), integers("{0}.long() * {1}")),
    "div": (binary("{0} / {1}", below=0.5, above=4.0),),
    "neg": (exactly("-{0}", "float"), unary("-{0}")),
    "abs": (exactly("{0}.abs()", "float"), unary("{0}.abs()")),
    "sign": (exactly("torch.sign({0})", "float"), exactly("torch.sgn({0})", "float")),
    "square": (unary("{0} ** 2", -30, 30), unary("torch.square({0})", -30, 30)),
    "sqrt": (unary("{0}.sqrt()", 0.125, 1e9), unary("{0} ** 0.5", 0.125, 1e9)),
    "rsqrt": (unary("{0}.rsqrt()", 0.125, 1e9), unary("{0} ** -0.5", 0.125, 1e9)),
    "reciprocal": (unary("{0}.reciprocal()", 0.25, 1e9), unary("{0} ** -1", 0.25, 1e9)),
    "exp": (unary("{0}.exp()", -6.0, 4.0),),
    "exp2": (unary("{0}.exp2()", -8.0, 6.0),),
    "expm1": (unary("{0}.expm1()", -6.0, 4.0),),
    "log": (unary("{0}.log()", 0.125, 1e9),),
    "log2": (unary("{0}.log2()", 0.125, 1e9),),
    "log1p": (unary("{0}.log1p()", -0.5, 1e9),),
    "sin": (unary("{0}.sin()"),),
    "cos": (unary("{0}.cos()"),),
    "tanh": (unary("{0}.tanh()"),),
    "erf": (unary("{0}.erf()"),),
    "sigmoid": (unary("{0}.sigmoid()"),),
    "silu": (unary("F.silu({0})"),),
    "gelu_tanh": (unary("F.gelu({0}, approximate='tanh')"),),
    "gelu_erf": (unary("F.gelu({0})"),),
    "relu": (unary("F.relu({0})"),),
    "softplus": (unary("F.softplus({0})"), unary("F.softplus({0}, 2.0, 10.0)")),
    "floor": (exactly("{0}.floor()", "float"),),
    "ceil": (exactly("{0}.ceil()", "float"),),
    "trunc": (exactly("{0}.trunc()", "float"), exactly("torch.fix({0})", "float")),
    "round": (exactly("{0}.round()", "float"),),
    "pow": (binary("torch.pow({0}, {1})", 0.25, 3.0, -3.0, 3.0), unary("{0} ** 1.75", 0.125, 20.0)),
    "maximum": (
        binary("torch.maximum({0}, {0} * 0.5 + {1})"),
        exactly("torch.maximum({0}, {1})", second="tensor"),
    ),
    "minimum": (
        binary("torch.minimum({0}, {0} * 0.5 + {1})"),
        exactly("torch.minimum({0}, {1})", second="tensor"),
    ),
    **{
        op: (exactly(f"{{0}} {sign} {{1}}", second="number"), exactly(f"{{0}} {sign} {{1}}", second="tensor"))
        for op, sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))
    },
    "isnan": (exactly("torch.isnan({0})", "float"),),
    "logical_and": (logical("torch.logical_and({0}, {1})", 2),),
    "logical_or": (logical("torch.logical_or({0}, {1})", 2),),
    "logical_not": (logical("torch.logical_not({0})", 1),),
    "where": (where,),
    # Reductions
    "sum": (reduction("torch.sum({0}, {1}, {2})", -20, 20), unary("torch.sum({0}.contiguous())", -0.25, 0.5)),
    "max": (reduction("torch.amax({0}, {1}, {2})"),),
    "min": (reduction("torch.amin({0}, {1}, {2})"),),
    # Composites
    "rsub": (unary("torch.rsub({0}, 1.5)"), three("torch.rsub({0}, {1}, alpha={3})")),
    "pow_scalar": (unary("2.0 ** {0}", -6, 6),),
    "gelu": (unary("F.gelu({0})"),),
    "clamp": (
        unary("torch.clamp({0}, -1.0, 0.75)"),
        three("torch.clamp({0}, torch.minimum({1}, {2}), torch.maximum({1}, {2}))"),
    ),
    "hardtanh": (unary("F.hardtanh({0})"), unary("F.relu6({0})")),
    "clamp_min": (unary("torch.clamp_min({0}, 0.125)"), binary("torch.clamp_min({0}, {1})")),
    "clamp_max": (unary("torch.clamp_max({0}, 0.125)"), binary("torch.clamp_max({0}, {1})")),
    "leaky_relu": (unary("F.leaky_relu({0}, 0.1)"),),
    "elu": (unary("F.elu({0}, 1.5)", -20, 1e9), unary("F.selu({0})", -20, 1e9)),
    "hardsigmoid": (unary("F.hardsigmoid({0})"),),
    "hardswish": (unary("F.hardswish({0})"),),
    "addcmul": (three("torch.addcmul({0}, {1}, {2}, value={3})"), three("torch.addcmul({0}, {1}, {2})")),
    "addcdiv": (three("torch.addcdiv({0}, {1}, {2}, value={3})", True),),
    "lerp": (three("torch.lerp({0}, {1}, {3})"), three("torch.lerp({0}, {1}, {2})")),
    "masked_fill": (masked_fill,),
    "bitwise_and": (logical("{0} & {1}", 2),),
    "bitwise_or": (logical("{0} | {1}", 2),),
    "bitwise_not": (logical("~{0}", 1),),
    "mean": (reduction("torch.mean({0}, {1}, {2})"), unary("torch.mean({0}.contiguous())")),
    "amax": (reduction("torch.amax({0}, {1}, {2})"),),
    "amin": (reduction("torch.amin({0}, {1}, {2})"),),
    "var_mean": (reduction("torch.var_mean({0}, {1}, correction=0, keepdim={2})[0]"),),
    "var": (reduction("torch.var({0}, {1}, correction=0, keepdim={2})"),),
    "vector_norm": (
        reduction("torch.linalg.vector_norm({0}, 2, {1}, {2})"),
        reduction("torch.linalg.vector_norm({0}, 1, {1}, {2})", -10, 10),
        reduction("torch.linalg.vector_norm({0}, float('inf'), {1}, {2})"),
    ),
    "layer_norm": (norm("layer"),),
    "rms_norm": (norm("rms"),),
    "softmax": (softmax("torch.softmax({0}, {1})"), softmax("torch.softmax({0}, {1}, dt('float32'))")),
    "log_softmax": (softmax("torch.log_softmax({0}, {1})"),),
    "to_copy": (cast("{0}.to(dt('{1}'))"),),
    "convert": (cast("prims.convert_element_type.default({0}, dt('{1}'))"),),
    "clone": (clone,),
    "dropout": (unary("torch.native_dropout({0}.contiguous(), 0.25, False)[0]"),),
    "full": (constant("torch.full({1}, {2})"), constant("torch.full({1}, {2}, dtype=dt('{3}'))")),
    "zeros": (constant("torch.zeros({1}, dtype=dt('{3}'))"),),
    "ones": (constant("torch.ones({1}, dtype=dt('{3}'))"),),
    "zeros_like": (constant("torch.zeros_like({0})"), constant("{0}.new_zeros({1})")),
    "ones_like": (constant("torch.ones_like({0})"), constant("{0}.new_ones({1})")),
    "full_like": (constant("torch.full_like({0}, {2})"),),
    "new_full": (constant("{0}.new_full({1}, {2})"),),
    "scalar_tensor": (constant("torch.scalar_tensor({2}, dtype=dt('{3}'))"),),
    "arange": (arange,),
    "embedding": (embedding,),
    "cat": (cat, rotary, split, cat),
}
VIEWS: tuple[Step, ...] = (view, view, split, rotary)

LAST = (1, 2, 3, 5, 7, 8, 16, 17, 31, 33, 48, 63, 64, 65, 100, 127, 129, 130, 200, 257)
OTHER = (1, 2, 3, 5)


def write(choose: Chooser, must: Sequence[str], most: int) -> Graph:
    """A graph in which each row of ``must`` is tried, among others, of two to ``most`` ops (and clamps that keep values in
    an op's domain)."""
    w = Writer(choose, "")
    w.dtype = w.pick(FLOATS)
    rank = w.pick((2, 3, 1, 4, 2, 3, 0, 5, 6))
    small = OTHER if rank < 5 else (1, 2, 3)
    shape = [w.pick(small) for _ in range(rank - 1)] + (
        [w.pick(LAST if rank < 4 else LAST[:14])] if rank else []
    )
    while torch.Size(shape).numel() > MOST_ELEMENTS:
        shape[0] = 1
        shape[-1] = max(1, shape[-1] // 2)
    w.input(shape)
    names = list(STEPS)
    target = w.choose.integer(4, most)
    plan = list(must)
    while len(plan) < target:
        plan.append("view" if w.chance(4) else w.pick(names))
    needed: list[str] = []
    for name in plan if w.chance(2) else reversed(plan):
        steps = VIEWS if name == "view" else STEPS[name]
        for _ in range(4 if name in must else 1):
            before = len(w.lines), len(w.pool), len(w.inputs)
            try:
                w.pick(steps)(w)
                needed += [w.pool[-1].name] if name in must else []
                break
            except Unusable:
                del w.lines[before[0] :], w.pool[before[1] :], w.inputs[before[2] :]
        if len(w.lines) > most:
            break
    made = [v for v in w.pool if v.name.startswith("v")]
    while len(made) < 2:
        last = w.pool[-1]
        made.append(
            w.line(
                f"~{last.name}" if last.kind == "bool" else f"torch.maximum({last.name}, {last.name})",
                last.exact,
            )
        )
    wanted = {made[-1].name, w.pick(made).name, *needed} if w.chance(2) else {made[-1].name, *needed}
    outputs = [v.name for v in made if v.name in wanted]
    text = [f"{n}.mT" if w.scopes[0][n].dim() > 1 and w.chance(6) else n for n in outputs]
    lines = _needed(w.lines, outputs)
    inputs = [i for i in w.inputs if any(re.search(rf"\b{i.name}\b", line) for line in lines)]
    return Graph(tuple(inputs), tuple(lines), tuple(text))


def _needed(lines: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """The lines that outputs depend on."""
    names, kept = set(outputs), list[str]()
    for line in reversed(lines):
        made, _, text = line.partition(" = ")
        if made in names:
            names.update(re.findall(r"\bv\d+\b", text))
            kept.append(line)
    return kept[::-1]


def targets(graph: torch.fx.GraphModule) -> set[str]:
    return {str(n.target).removeprefix("aten.") for n in graph.graph.nodes if n.op == "call_function"}
