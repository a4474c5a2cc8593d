"""Every op_* function of the CPU prelude against float64 over the whole fp32 domain."""

from __future__ import annotations

import math
import struct
import tomllib
from collections.abc import Callable
from importlib import resources

import numpy as np
import pytest
import torch

from onepass.codegen.cpu_prelude import cpu_prelude
from onepass.runtime.cache import DiskCache
from onepass.runtime.launch_cpu import load_kernel

COSTS = tomllib.loads(resources.files("onepass.codegen").joinpath("prelude/cpu_costs.toml").read_text())
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
ONE_ARGUMENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "exp_flush": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "recip": torch.reciprocal,
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    # The forms that keep the relative error in the negative tail.
    "gelu_tanh": lambda x: x / (1 + torch.exp(-2 * SQRT_2_OVER_PI * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * torch.special.erfc(-x / math.sqrt(2)),
    "softplus": lambda x: x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())),
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "sign": torch.sign,
    "relu": torch.relu,
    "abs": torch.abs,
    "neg": torch.neg,
}
TWO_ARGUMENTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "pow": torch.pow,
    "fmod": lambda a, b: torch.from_numpy(np.fmod(a.numpy(), b.numpy())),
    "remainder": lambda a, b: torch.from_numpy(np.mod(a.numpy(), b.numpy())),
    "max": torch.maximum,
    "min": torch.minimum,
}
FORMS = [(name, form) for name in COSTS if name in ONE_ARGUMENT for form in COSTS[name]]
SPECIAL = [
    0.0,
    1.0,
    2.0,
    0.5,
    3.0,
    math.inf,
    math.nan,
    1e-40,
    1.2e-38,
    3.4e38,
    16777216.0,
    8388607.5,
    0.49999997,
]


def kernel_source() -> str:
    text = cpu_prelude() + "struct Args { const float* x; const float* z; float* y; };\n"
    for name, form in FORMS:
        short = "_h" if form == "half" else ""
        text += function(f"{name}_{form}", f"op_{name}{short}(load(a->x + i))")
    for name in TWO_ARGUMENTS:
        text += function(f"{name}_fp32", f"op_{name}(load(a->x + i), load(a->z + i))")
    text += function("has_fma", "vf((float)ONEPASS_HAS_FMA)")
    return text + function("broken_fp32", "op_exp(load(a->x + i)) * 1.0000005f")


def function(name: str, expression: str) -> str:
    loop = f"for (i64 i = 16 * begin; i < 16 * end; i += 16) store(a->y + i, {expression});"
    return f'extern "C" void f_{name}(const Args* a, long long begin, long long end, void*) {{ {loop} }}\n'


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., torch.Tensor]:
    cache = DiskCache(tmp_path_factory.mktemp("cache"))
    source = kernel_source()

    def run(name: str, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        count = -(-x.numel() // 16) * 16
        padded = [torch.ones(count) for _ in range(2)]
        padded[0][: x.numel()] = x
        if z is not None:
            padded[1][: x.numel()] = z
        y = torch.full((count,), float("nan"))
        args = struct.pack("3q", *(t.data_ptr() for t in (*padded, y)))
        load_kernel(source, f"f_{name}", cache=cache).run(args, count // 16, 128, 0)
        return y[: x.numel()]

    return run


def whole_domain() -> torch.Tensor:
    """Every 8009th bit pattern, the specials with both signs, and dense grids where functions bend."""
    patterns = torch.arange(-(2**31), 2**31, 8009, dtype=torch.int64).to(torch.int32).view(torch.float32)
    special = torch.tensor(SPECIAL)
    grids = [torch.linspace(-a, a, 100001) for a in (2.0, 20.0, 110.0, 7e4)]
    return torch.cat([special, -special, *grids, patterns])


def units(got: torch.Tensor, want: torch.Tensor, allowance: torch.Tensor | float) -> float:
    """The largest relative error in units of 2^-24; infinite where only one is NaN or infinite."""
    largest = torch.finfo(torch.float32).max * (1 + 2.0**-25)
    want = torch.where(want.abs() > largest, want.sign() * math.inf, want)
    same = (got.double() == want) | (got.isnan() & want.isnan())
    error = ((got.double() - want).abs() - allowance).clamp(min=0) / want.abs() * 2.0**24
    return float(torch.where(same, 0.0, error.nan_to_num(nan=math.inf)).max())


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_error_is_within_what_is_stated(name: str, form: str, compute: Callable[..., torch.Tensor]) -> None:
    x = whole_domain()
    entry = COSTS[name][form]
    has_fma = bool(compute("has_fma", x[:1])[0])
    limit = entry["units"] if has_fma else entry.get("no_fma", entry["units"])
    least = 2.0**-125 * x.double().abs().clamp(1, 200) if entry.get("flushes") else 2.0**-149
    assert units(compute(f"{name}_{form}", x), ONE_ARGUMENT[name](x.double()), least) <= limit


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
def test_gelu_is_accurate_where_values_lie(name: str, compute: Callable[..., torch.Tensor]) -> None:
    x = torch.linspace(-2, 20, 1000001)
    assert units(compute(f"{name}_fp32", x), ONE_ARGUMENT[name](x.double()), 0.0) <= 10


@pytest.mark.parametrize("name", TWO_ARGUMENTS)
def test_functions_of_two_arguments(name: str, compute: Callable[..., torch.Tensor]) -> None:
    make = torch.Generator().manual_seed(1)
    n = 200_000
    domain = whole_domain()
    pick = torch.randint(0, domain.numel(), (2, n), generator=make)
    special = torch.tensor([*SPECIAL, *(-s for s in SPECIAL)])
    a = torch.cat([torch.randn(n, generator=make) * 4, domain[pick[0]], special.repeat(len(special))])
    b = torch.cat(
        [torch.randn(n, generator=make) * 4, domain[pick[1]], special.repeat_interleave(len(special))]
    )
    a = torch.cat([a, torch.randint(-30, 30, (n,), generator=make).float()])
    b = torch.cat([b, torch.randint(-30, 30, (n,), generator=make).float()])
    with np.errstate(invalid="ignore"):
        want = TWO_ARGUMENTS[name](a.double(), b.double())
    if name == "remainder":
        # adding the divisor to a remainder of the other sign rounds; with an infinite divisor PyTorch
        # gives infinity where numpy gives NaN
        finite = ~b.isinf()
        a, b, want = a[finite], b[finite], want[finite]
        least: torch.Tensor | float = 2.0**-24 * b.double().abs()
    else:
        least = 2.0**-149
    assert units(compute(f"{name}_fp32", a, b), want, least) <= COSTS[name]["fp32"]["units"]


@pytest.mark.parametrize("name", ["tanh", "erf"])
@pytest.mark.parametrize("form", ["fp32", "half"])
def test_bounded_functions_stay_in_bounds(name: str, form: str, compute: Callable[..., torch.Tensor]) -> None:
    y = compute(f"{name}_{form}", whole_domain())
    assert (y[~y.isnan()].abs() <= 1).all()


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf", "silu"])
def test_infinities_as_in_pytorch(name: str, compute: Callable[..., torch.Tensor]) -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 1e4, -1e4, 3e38, -3e38])
    eager = {
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "gelu_erf": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
    }[name]
    y, want = compute(f"{name}_fp32", x), eager(x)
    assert torch.equal(y.isnan(), want.isnan())
    assert torch.equal(torch.nan_to_num(y), torch.nan_to_num(want))


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc", "neg", "sin", "tanh", "erf"])
def test_negative_zero_is_kept(name: str, compute: Callable[..., torch.Tensor]) -> None:
    y = compute(f"{name}_fp32", torch.tensor([-0.0, 0.0]))
    assert torch.equal(y.signbit(), ONE_ARGUMENT[name](torch.tensor([-0.0, 0.0])).signbit())


def test_an_error_of_half_a_millionth_is_noticed(compute: Callable[..., torch.Tensor]) -> None:
    x = whole_domain()
    assert units(compute("broken_fp32", x), torch.exp(x.double()), 2.0**-149) > COSTS["exp"]["fp32"]["units"]
