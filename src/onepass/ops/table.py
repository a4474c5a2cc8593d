"""The tables by name and by ATen overload. Rows are gathered here and nowhere else."""

from __future__ import annotations

from onepass.ops.composite import MADE_OF_OTHERS
from onepass.ops.elementwise import ELEMENTWISE
from onepass.ops.library import LIBRARY
from onepass.ops.loss import LOSSES
from onepass.ops.opdef import CompositeDef, OpDef, ReductionDef
from onepass.ops.pointwise import POINTWISE
from onepass.ops.reduce import REDUCTIONS
from onepass.ops.reduced import REDUCED

OPS: dict[str, OpDef] = {op.name: op for op in (*ELEMENTWISE, *LIBRARY)}
REDUCE: dict[str, ReductionDef] = {op.name: op for op in REDUCTIONS}
COMPOSITES: tuple[CompositeDef, ...] = (*MADE_OF_OTHERS, *POINTWISE, *REDUCED, *LOSSES)
BY_ATEN: dict[str, OpDef | CompositeDef] = {
    **{aten: op for op in OPS.values() for aten in op.aten},
    **{aten: op for op in COMPOSITES for aten in op.aten},
}

# ATen ops that only change how a tensor is addressed. They become addresses, not nodes.
VIEWS: frozenset[str] = frozenset(
    {
        "view.default",
        "_unsafe_view.default",
        "reshape.default",
        "_reshape_alias.default",
        "transpose.int",
        "t.default",
        "permute.default",
        "unsqueeze.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "expand.default",
        "slice.Tensor",
        "select.int",
        "narrow.default",
        "alias.default",
        "detach.default",
        "split.Tensor",
        "split_with_sizes.default",
        "chunk.default",
        "unbind.int",
        "as_strided.default",
        "diagonal.default",
        "unfold.default",
        "view.dtype",
        "lift_fresh.default",
    }
)

# Ops that read by the place in memory, so that a copy can't stand for what it copied.
BY_PLACE: frozenset[str] = frozenset(
    {"as_strided.default", "as_strided_.default", "as_strided_copy.default", "as_strided_scatter.default"}
)

# Ops that write a value back into an input, at the end of a graph whose program works in place.
WRITES_BACK: frozenset[str] = frozenset({"copy_.default"})

# ATen ops that read of their first operand only as many elements as they return.
GATHERS: frozenset[str] = frozenset(
    {
        "embedding.default",
        "index.Tensor",
        "index_select.default",
        "gather.default",
        "take.default",
        "take_along_dim.default",
    }
)

# ATen ops bound by arithmetic, not by memory: they stay with PyTorch whatever surrounds them.
COMPUTE_BOUND: frozenset[str] = frozenset(
    {
        "mm.default",
        "bmm.default",
        "addmm.default",
        "baddbmm.default",
        "dot.default",
        "mv.default",
        "addmv.default",
        "linear.default",
        "matmul.default",
        "convolution.default",
        "conv1d.default",
        "conv2d.default",
        "einsum.default",
        "_scaled_dot_product_flash_attention.default",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        "_scaled_dot_product_efficient_attention.default",
        "_scaled_dot_product_cudnn_attention.default",
        "_scaled_dot_product_attention_math.default",
        "scaled_dot_product_attention.default",
        "_addmm_activation.default",
        "_scaled_mm.default",
        "_int_mm.default",
        "attention.default",
        "mkldnn_linear_pointwise.default",
    }
)

# Ops whose first operand is a bias, and what they are without it.
WITHOUT_BIAS: dict[str, str] = {"addmm.default": "mm.default"}

# Ops that are replaced by others before a graph is read (`capture/decompose.py`), and by which.
REPLACED: dict[str, str] = {
    "roll.default": "the two ends of a dimension, concatenated the other way round",
}

# Memory-bound ATen ops that models run and no kernel takes, with the reason that reports give.
LEFT: dict[str, str] = {
    "gather.default": "each element is read from a place of its own, which no address of a row expresses",
    "index.Tensor": "several index tensors choose each element together",
    "index_put.default": "elements are written to places that are only known at run time",
    "scatter.src": "elements are written to places that are only known at run time",
    "cummax.default": "a scan with positions",
    "logcumsumexp.default": "a scan in logarithms",
    "sort.default": "elements change places by value",
    "topk.default": "elements change places by value",
    "max_pool2d_with_indices.default": "each result is read from a window, which no address of a row expresses",
    "avg_pool2d.default": "each result is read from a window, which no address of a row expresses",
    "nonzero.default": "the result's size is only known at run time",
}
