"""`onepass bench` on functions, references and inputs that break others: void rows and errors with advice, no traceback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.errors import BadUserFile
from onepass.insight import bench as benching

X, R = torch.randn(64, 96), torch.randn(64, 96)
FLAT = torch.randn(200)


def add(x: Tensor, r: Tensor) -> Tensor:
    return x + r


@pytest.fixture(autouse=True)
def two_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching.timer, "sets_needed", lambda *_: 2)


def row(
    function: Callable[..., Any],
    reference: Callable[..., Any] = add,
    inputs: tuple[Any, ...] | None = None,
    reads: str = "x,r",
    writes: str = "y",
) -> benching.Row:
    job = benching.task(
        "f.py", function, inputs or (X.clone(), R.clone()), reads.split(","), writes.split(","), reference
    )
    return benching.bench(job, 2)


def leaves(x: Tensor, r: Tensor) -> Tensor:
    raise SystemExit(3)


def sparse(x: Tensor, r: Tensor) -> Tensor:
    return (x + r).to_sparse()


def elsewhere(x: Tensor, r: Tensor) -> Tensor:
    return (x + r).to("meta")


def nothing(x: Tensor, r: Tensor) -> None:
    return None


def later() -> Callable[[Tensor, Tensor], Tensor]:
    calls = 0

    def fails(x: Tensor, r: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("out of memory")
        return x + r

    return fails


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (leaves, "it raised SystemExit: 3"),
        (sparse, "layout torch.sparse_coo instead of a plain tensor"),
        (elsewhere, "on meta"),
        (nothing, "a NoneType instead of a tensor"),
        (later(), "while it was timed it raised RuntimeError: out of memory"),
        (lambda x, r: (x + r).to(torch.cfloat) + 1j, "values"),
    ],
)
def test_functions_that_void_their_row(function: Callable[..., Any], said: str) -> None:
    assert said in row(function).void


def no_reference(x: Tensor, r: Tensor) -> Tensor:
    raise KeyError("weight")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (no_reference, "--ref: it raised KeyError: 'weight'"),
        (lambda x: x, "--ref: it raised TypeError"),
        (nothing, r"gives 1 results \(NoneType\)"),
        (elsewhere, "on another device than cpu"),
        (sparse, "not as a plain tensor"),
    ],
)
def test_references_that_give_nothing_to_compare_with(reference: Callable[..., Any], said: str) -> None:
    with pytest.raises(BadUserFile, match=said):
        row(add, reference)


@pytest.mark.parametrize(
    ("inputs", "reads", "writes", "said"),
    [
        ((X, R), "x,x", "y", "x is named twice"),
        ((X, R), "x,r", "y,y", "y is named twice"),
        ((X[:0], R[:0]), "x,r", "y", "nothing is moved"),
        ((X.to("meta"), R.to("meta")), "x,r", "y", "on meta"),
        ((X, R.to("meta")), "x,r", "y", "on meta"),
        ((FLAT[:96], FLAT[1:97]), "x,r", "y", "are the same memory"),
        ((X, 2.0), "x,r", "y", "--reads r: `add` has no such tensor"),
    ],
)
def test_inputs_that_can_not_be_timed(inputs: tuple[Any, ...], reads: str, writes: str, said: str) -> None:
    with pytest.raises(BadUserFile, match=said):
        row(add, inputs=inputs, reads=reads, writes=writes)


def test_numbers_where_the_reference_gives_nan_are_told() -> None:
    assert "are numbers where float64 gives NaN" in row(add, lambda x, r: (x + r) * torch.nan).void


def test_a_reference_that_writes_to_its_inputs_does_not_change_what_is_timed() -> None:
    x, r = torch.arange(64), torch.arange(64)
    job = benching.task("f.py", add, (x, r), ["x", "r"], ["y"], lambda x, r: x.add_(r))
    assert not benching.bench(job, 2).void.startswith("y")
    assert torch.equal(x, torch.arange(64))


def test_a_module_is_its_own_reference_in_float64() -> None:
    norm = torch.nn.LayerNorm(96)
    job = benching.task("f.py", norm, (X.clone(),), ["input"], ["y"], norm)
    void = benching.bench(job, 2).void
    assert not void or "of the measured roof" in void
    assert next(norm.parameters()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_keeps_the_epsilon_that_it_has_for_narrow_inputs(dtype: torch.dtype) -> None:
    """Without one, PyTorch adds float32's to float32 and narrower inputs, float64's to float64 ones."""

    def norm(x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:])

    small = (X * 1e-4).to(dtype)
    job = benching.task("f.py", norm, (small,), ["x"], ["y"], norm)
    void = benching.bench(job, 2).void
    assert not void or "of the measured roof" in void
    job = benching.task(
        "f.py", norm, (small,), ["x"], ["y"], lambda x: F.rms_norm(x, x.shape[-1:], eps=2.0**-52)
    )
    assert "too far from float64" in benching.bench(job, 2).void


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(1, 96).expand(64, 96),
        torch.randn(96, 64).t(),
        torch.randn(64, 300)[:, 100:196],
        torch.randn(64 * 96 + 3)[3:].view(64, 96),
        torch.randn(()),
    ],
)
def test_copies_have_the_layout_of_what_they_copy(x: Tensor) -> None:
    made = benching.copied(x)
    assert torch.equal(made, x) and made.stride() == x.stride() and made.data_ptr() != x.data_ptr()
    assert made.data_ptr() % 16 == x.data_ptr() % 16
    assert benching._bytes(made) == benching._bytes(x)


def test_an_expanded_input_gets_new_values_too() -> None:
    found = row(add, inputs=(torch.randn(1, 96).expand(64, 96), R))
    assert not found.void or "of the measured roof" in found.void
    assert found.ideal_bytes == 4 * (96 + 2 * 64 * 96)


def test_poison_is_no_value_that_a_kernel_leaves_by_chance() -> None:
    for dtype in (torch.uint8, torch.int8, torch.int64):
        x = torch.zeros(4, dtype=dtype)
        benching.poison(x)
        assert (x != 0).all()


def test_complex_results_are_compared_in_both_parts() -> None:
    exact = torch.randn(64, dtype=torch.complex128)
    assert benching.compared(exact.to(torch.complex64), exact) == ""
    assert benching.compared(exact.to(torch.complex64).conj(), exact)
    assert "instead of complex" in benching.compared(exact.real.float(), exact)
