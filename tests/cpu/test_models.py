"""Real architectures, small and random: as exact as eager, no kernel built twice, next to nothing left to PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from harness.models import (
    MODELS,
    Model,
    check,
    inputs,
    prepare,
    randomised,
)
from onepass.api import totals
from onepass.capture.backend import Backend
from onepass.ops.table import LEFT
from onepass.runtime.counters import COUNTERS

FIRST, SECOND = (4, 16), (3, 11)

# A padding mask's sizes are symbols of their own in a graph with symbolic sizes: what is fused by the accident that
# they agree with others' at one size is not fused then.
SIZES_AGREE_BY_ACCIDENT = ("bert padded", "llama padded")


pytestmark = pytest.mark.usefixtures("fresh")


def another(described: Model) -> tuple[int, int]:
    """A second size that the model takes: some have a fixed length."""
    return SECOND if 1 in described.dynamic else (SECOND[0], FIRST[1])


@pytest.mark.parametrize("name", MODELS)
def test_as_exact_as_eager_with_no_kernel_built_twice_and_next_to_nothing_left(name: str) -> None:
    described = MODELS[name]
    prepared = prepare(described, torch.float32)
    given = inputs(described, FIRST, torch.float32)
    check(prepared, given)
    (compiled,) = prepared.backend.compiled
    assert not prepared.backend.left

    before = totals(compiled.plan)
    seen = memory_bound_events(lambda: prepared.compiled(**given))
    assert sum(seen.values()) <= 0.05 * before.eager_bytes, seen
    assert before.aten_memory_bound_bytes <= 0.05 * before.eager_bytes
    assert {call.target for call in compiled.plan.calls if call.bound == "memory"} <= set(
        LEFT
    )  # in docs/ops.md

    built = COUNTERS.compiled
    check(prepared, inputs(described, another(described), torch.float32))
    assert COUNTERS.compiled == built or name in SIZES_AGREE_BY_ACCIDENT


@pytest.mark.parametrize("name", MODELS)
def test_in_bf16_one_dynamic_graph_for_all_sizes(name: str) -> None:
    described = MODELS[name]
    prepared = prepare(described, torch.bfloat16, dynamic=True)
    check(prepared, inputs(described, FIRST, torch.bfloat16))
    assert not prepared.backend.left
    built, graphs = COUNTERS.compiled, len(prepared.backend.compiled)
    check(prepared, inputs(described, another(described), torch.bfloat16))
    assert (COUNTERS.compiled, len(prepared.backend.compiled)) == (built, graphs)


# What is left to PyTorch, by the profiler

# Ops bound by arithmetic, and everything they call: masks made dense inside attention, biases spread inside addmm.
COMPUTE = {
    f"aten::{name}"
    for name in [
        "addmm",
        "mm",
        "bmm",
        "baddbmm",
        "convolution",
        "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    ]
}
# These move no data, or only say where it lies.
FREE = {
    f"aten::{name}"
    for name in [
        "view",
        "as_strided",
        "as_strided_",
        "t",
        "transpose",
        "expand",
        "slice",
        "select",
        "narrow",
        "unsqueeze",
        "squeeze",
        "permute",
        "unbind",
        "split",
        "split_with_sizes",
        "alias",
        "detach",
        "empty",
        "empty_like",
        "empty_strided",
        "resize_",
        "resolve_conj",
        "resolve_neg",
        "reshape",
        "_reshape_alias",
        "_unsafe_view",
        "flatten",
        "to",
        "contiguous",
        "lift_fresh",
        "chunk",
        "item",
        "_local_scalar_dense",
        "is_nonzero",
        "_fused_sdp_choice",
        "dropout",
        "scalar_tensor",
    ]
}
MOST_BYTES_AN_ELEMENT = 8


def memory_bound_events(run: Callable[[], Any]) -> dict[str, int]:
    """ATen ops that the profiler saw and that move data, and their bytes, at least."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    found: dict[str, int] = {}
    for event in profiler.events():
        aten_children = [child for child in event.cpu_children if child.name.startswith("aten::")]
        is_leaf = all(child.name in FREE for child in aten_children)
        if (
            event.name.startswith("aten::")
            and event.name not in FREE
            and is_leaf
            and not _inside(event, COMPUTE)
        ):
            sizes = _elements(event.input_shapes)
            moved = (sum(sizes) + max(sizes, default=1)) * MOST_BYTES_AN_ELEMENT
            found[event.name] = found.get(event.name, 0) + moved
    return found


def _inside(event: Any, names: set[str]) -> bool:
    while event is not None:
        if event.name in names:
            return True
        event = event.cpu_parent
    return False


def _elements(sizes: Any) -> list[int]:
    """Elements of each tensor in nested lists of shapes; numbers have none."""
    if not sizes:
        return []
    if all(isinstance(n, int) for n in sizes):
        elements = 1
        for n in sizes:
            elements *= n
        return [elements]
    return [n for inner in sizes for n in _elements(inner)]


def test_the_profiler_sees_what_is_left() -> None:
    """With everything denied, all of eager's memory-bound ops show."""
    described = MODELS["nn.TransformerEncoder"]
    model, given = randomised(described.build), inputs(described, (2, 16), torch.float32)
    compiled = torch.compile(model, backend=Backend(), options={"deny": ["native_layer_norm", "add", "relu"]})
    compiled(**given)
    seen = memory_bound_events(lambda: compiled(**given))
    assert {"aten::native_layer_norm", "aten::add", "aten::clamp_min"} <= set(seen)


# Generation


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
def test_generate_with_a_cache(name: str) -> None:
    model: Any = randomised(MODELS[name].build)
    model.generation_config.pad_token_id = 0
    prompt = torch.randint(3, 101, (2, 9))
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "use_cache": True}
    expected = model.generate(prompt, **options)
    launches: list[int] = []
    compiled = torch.compile(model.forward, backend=Backend())

    def counted(*args: Any, **kwargs: Any) -> Any:
        before = COUNTERS.launched
        output = compiled(*args, **kwargs)
        launches.append(COUNTERS.launched - before)
        return output

    model.forward = counted
    got = model.generate(prompt, **options)
    assert torch.equal(got, expected)
    assert len(expected[:, 9:].unique()) > 1
    assert len(launches) == 8
    assert min(launches) > 0
