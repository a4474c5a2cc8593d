"""Loads and stores of the CPU prelude: every type, every tail, and not a byte beyond the end."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable

import pytest
import torch

from onepass.codegen.cpu_prelude import cpu_prelude
from onepass.runtime.cache import DiskCache
from onepass.runtime.launch_cpu import CpuKernel, load_kernel

STORAGE = {
    "float": torch.float32,
    "double": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "b8": torch.bool,
}
OPERATIONS = {
    "whole": "if (n == 16) store(y, load(x));",
    "some": "if (n < 16) store_n(y, load_n(x, n), n);",
    "strided": "if (n == 16) store_s(y, 3, load_s(x, 3));",
    "strided_some": "store_sn(y, 3, load_sn(x, 3, n), n);",
    "streamed": "if (n == 16) stream(y, load(x));",
    "one": "store_1(y, load_1(x));",
    "tail": "store_tail(y, load_tail(x, n), n);",
}

PARTS = "for (int p = 0; p < 16; p += ONEPASS_NATIVE)"
CONVERSIONS = {
    "to_bf16": "store((bf16*)a->y + i, load(a->x + i));",
    "to_f16": "store((f16*)a->y + i, load(a->x + i));",
    "generic_f16": f"{PARTS} *(nh_at*)((f16*)a->y + i + p) = n_narrow_f16_generic(n_load(a->x + i + p));",
    "round_to_bf16": "store((float*)a->y + i, round_bf16(load(a->x + i)));",
    "round_to_f16": "store((float*)a->y + i, round_f16(load(a->x + i)));",
    "from_bf16": "store((float*)a->y + i, load((const bf16*)a->x + i));",
    "from_f16": "store((float*)a->y + i, load((const f16*)a->x + i));",
    "generic_from_f16": f"{PARTS} *(nf_at*)((float*)a->y + i + p) = "
    "n_widen_f16_generic(*(const nh_at*)((const f16*)a->x + i + p));",
    "below": "store((b8*)a->y + i, load(a->x + i) < vf(0.0f));",
    "mask_some": "store_n((float*)a->y, to_float(!load_mask_n((const b8*)a->x, a->n)), a->n);",
    "sums": "vf v = load(a->x); float* y = (float*)a->y; "
    "y[0] = hsum(v), y[1] = hmax(v), y[2] = hmin(v), y[3] = hprod(v);",
}


def kernel_source() -> str:
    text = cpu_prelude()
    for storage in STORAGE:
        text += f"struct Args_{storage} {{ const {storage}* x; {storage}* y; i64 n; }};\n"
        for name, body in OPERATIONS.items():
            text += (
                f'extern "C" void {name}_{storage}(const Args_{storage}* a, long long, long long, void*) '
                f"{{ const {storage}* x = a->x; {storage}* y = a->y; i64 n = a->n; {body} }}\n"
            )
    text += "struct Args_pair { const float* x; void* y; i64 n; };\n"
    for name, body in CONVERSIONS.items():
        loop = f"for (i64 i = 0; i < a->n; i += 16) {{ {body} }}"
        text += f'extern "C" void {name}(const Args_pair* a, long long, long long, void*) {{ {loop} }}\n'
    return text


Kernels = Callable[[str], CpuKernel]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    cache, source = DiskCache(tmp_path_factory.mktemp("cache")), kernel_source()
    return lambda name: load_kernel(source, name, cache=cache)


class Guarded:
    """A page that ends where a page begins that may not be touched."""

    def __init__(self) -> None:
        self.page = mmap.PAGESIZE
        self.map = mmap.mmap(-1, 2 * self.page)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        assert protect(self.start + self.page, self.page, 0) == 0

    def put(self, tensor: torch.Tensor) -> int:
        """Copy the tensor so that its last byte is the page's last; return its address."""
        size = tensor.numel() * tensor.element_size()
        at = self.start + self.page - size
        ctypes.memmove(at, tensor.data_ptr(), size)
        return at


@pytest.fixture
def guarded() -> tuple[Guarded, Guarded]:
    return Guarded(), Guarded()


def values(dtype: torch.dtype, n: int) -> torch.Tensor:
    make = torch.Generator().manual_seed(n)
    if dtype is torch.bool:
        return torch.randint(0, 2, (n,), generator=make).bool()
    low = 0 if dtype is torch.uint8 else -120
    whole = torch.randint(low, 120, (n,), generator=make)
    return (whole + (0.37 if dtype.is_floating_point else 0)).to(dtype)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_copy_is_exact_and_stays_inside(
    operation: str, storage: str, kernels: Kernels, guarded: tuple[Guarded, Guarded]
) -> None:
    kernel, dtype = kernels(f"{operation}_{storage}"), STORAGE[storage]
    step = 3 if "strided" in operation else 1
    counts = {"whole": [16], "streamed": [16], "strided": [16], "one": [1], "tail": [1, 5, 15, 16, 17, 31]}
    for n in counts.get(operation, range(1, 16)):
        x = values(dtype, (n - 1) * step + 1)
        y = torch.full_like(x, 99 if dtype is not torch.bool else 1)
        source, target = guarded[0].put(x), guarded[1].put(y)
        kernel.run(struct.pack("3q", source, target, n), 1, 0, 0)
        ctypes.memmove(y.data_ptr(), target, y.numel() * y.element_size())
        first = max(0, n - 16) if operation == "tail" else 0  # what stands before the last 16 is left alone
        want = x.float().to(dtype)
        assert torch.equal(y[::step][first:], want[::step][first:])
        assert step == 1 or (y[1::3] == torch.full_like(y, 99 if dtype is not torch.bool else 1)[1::3]).all()


def all_patterns() -> torch.Tensor:
    """Floats of every exponent, their lower bits on, beside and between the rounding points; NaNs too."""
    upper = torch.arange(2**16, dtype=torch.int64) << 16
    low = torch.tensor([0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    bits = (upper[:, None] | low[None, :]).flatten()
    bits = torch.where(bits >= 2**31, bits - 2**32, bits)
    return bits.to(torch.int32).view(torch.float32)


def run_pair(kernel: CpuKernel, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    assert x.numel() % 16 == 0
    kernel.run(struct.pack("3q", x.data_ptr(), y.data_ptr(), x.numel()), 1, 0, 0)
    return y


def same(y: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(y.isnan(), want.isnan()) and torch.equal(
        torch.where(y.isnan(), 0, y).float(), torch.where(want.isnan(), 0, want).float()
    )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("to_bf16", torch.bfloat16), ("to_f16", torch.float16), ("generic_f16", torch.float16)],
)
def test_narrowing_rounds_as_pytorch_does(name: str, dtype: torch.dtype, kernels: Kernels) -> None:
    x = all_patterns()
    y = run_pair(kernels(name), x, torch.empty_like(x, dtype=dtype))
    assert same(y, x.to(dtype))
    assert torch.equal(y.signbit()[~y.isnan()], x.signbit()[~y.isnan()])


@pytest.mark.parametrize(
    ("name", "dtype"), [("round_to_bf16", torch.bfloat16), ("round_to_f16", torch.float16)]
)
def test_rounding_in_place_of_a_store(name: str, dtype: torch.dtype, kernels: Kernels) -> None:
    x = all_patterns()
    assert same(run_pair(kernels(name), x, torch.empty_like(x)), x.to(dtype).float())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("from_bf16", torch.bfloat16), ("from_f16", torch.float16), ("generic_from_f16", torch.float16)],
)
def test_widening_is_exact(name: str, dtype: torch.dtype, kernels: Kernels) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert same(run_pair(kernels(name), x, torch.empty(x.shape)), x.float())


def test_masks(kernels: Kernels) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(3))
    y = run_pair(kernels("below"), x, torch.empty(64, dtype=torch.bool))
    assert torch.equal(y, x < 0)
    out = torch.full((16,), 7.0)
    kernels("mask_some").run(struct.pack("3q", y.data_ptr(), out.data_ptr(), 11), 1, 0, 0)
    assert torch.equal(out[:11], (~y[:11]).float())
    assert torch.equal(out[11:], torch.full((5,), 7.0))


def test_the_sum_is_a_fixed_tree(kernels: Kernels) -> None:
    x = torch.randn(16, generator=torch.Generator().manual_seed(4)) * torch.logspace(-6, 6, 16)
    y = run_pair(kernels("sums"), x, torch.empty(4))
    for reduce, got in ((torch.add, y[0]), (torch.maximum, y[1]), (torch.minimum, y[2]), (torch.mul, y[3])):
        tree = x.clone()
        for half in (8, 4, 2, 1):  # lane i meets lane i + half
            tree = reduce(tree[:half], tree[half : 2 * half])
        assert got == tree[0]


@pytest.mark.parametrize("at", range(16))
def test_horizontal_maximum_and_minimum_keep_nan(at: int, kernels: Kernels) -> None:
    x = torch.randn(16, generator=torch.Generator().manual_seed(at))
    x[at] = float("nan")
    assert run_pair(kernels("sums"), x, torch.empty(4)).isnan().all()
