"""What real graphs hold: every ATen op, its bytes, whether kernels can express it, what became of attention.

    PYTHONPATH=src:tests python tools/study_capture.py [--ops] [--dynamic] [--generate] [MODEL ...]

Traces the small random models of ``tests/harness/models.py`` in inference on the CPU. Bytes are an op's
inputs and outputs, each once, broadcast dimensions not repeated; an embedding reads the rows it looks up.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from harness.models import MODELS, VOCABULARY, Model, randomised
from onepass.capture.attention import SetAside, set_aside
from onepass.ops.table import BY_ATEN, COMPUTE_BOUND, VIEWS

BATCH, LENGTH = 8, 48
CLASSES = ("matmul", "attention", "conv", "view", "memory-bound", "left over")


@dataclass
class Trace:
    """The graphs that were compiled, what became of attention in each, and how often each ran."""

    graphs: list[Graph] = field(default_factory=list)
    attention: list[list[SetAside]] = field(default_factory=list)
    runs: Counter[int] = field(default_factory=Counter)

    def backend(self, gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func
        from torch._functorch.aot_autograd import aot_module_simplified

        self.attention.append(set_aside(gm))

        def compiler(inner: torch.fx.GraphModule, _: Any) -> Any:
            number = len(self.graphs)
            self.graphs.append(inner.graph)

            def run(*args: Any) -> Any:
                self.runs[number] += 1
                return inner.forward(*args)

            return make_boxed_func(run)

        return aot_module_simplified(
            gm, inputs, fw_compiler=compiler, inference_compiler=compiler, keep_inference_input_mutations=True
        )


@contextmanager
def masks_always_built() -> Iterator[None]:
    """Transformers as it traces under torch before 2.13: no mask is left out while compiling."""
    from transformers import masking_utils

    kept = masking_utils.is_torchdynamo_exporting
    masking_utils.is_torchdynamo_exporting = lambda: True
    try:
        yield
    finally:
        masking_utils.is_torchdynamo_exporting = kept


def kind(node: Node) -> str | None:
    """The class of a call, or None for what is none of the graph's work."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    name = short(node)
    if name in VIEWS:
        return "view"
    if "attention" in name:
        return "attention"
    if "conv" in name and "convert" not in name:
        return "conv"
    if name in COMPUTE_BOUND:
        return "matmul"
    return "memory-bound" if name in BY_ATEN else "left over"


def short(node: Node) -> str:
    return str(node.target).removeprefix("aten.")


def size_bytes(value: Any) -> int:
    if not isinstance(value, Tensor):
        return 0
    count = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        count *= int(size) if int(stride) else 1
    return count * value.element_size()


def node_bytes(node: Node) -> int:
    """Bytes an op moves: its inputs and outputs, each once."""
    result = node.meta.get("val")
    outputs = sum(map(size_bytes, result if isinstance(result, tuple | list) else [result]))
    inputs = [size_bytes(argument.meta.get("val")) for argument in node.all_input_nodes]
    if short(node) == "embedding.default":
        return 2 * outputs + inputs[1]
    return outputs + sum(inputs)


def traced(model: Model, *, dynamic: bool) -> Trace:
    trace, module = Trace(), randomised(model.build)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=trace.backend)
    for batch, length in ((BATCH, LENGTH), (BATCH - 3, LENGTH - 11)) if dynamic else ((BATCH, LENGTH),):
        inputs = model.inputs(batch, length)
        for tensor in inputs.values() if dynamic else ():
            for dim in model.dynamic:
                torch._dynamo.mark_dynamic(tensor, dim)
        compiled(**inputs)
    return trace


def table(headers: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    print("| " + " | ".join(headers) + " |")
    print("|" + "---|" * len(headers))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def kib(count: int) -> str:
    return f"{count / 1024:.0f}"


def report_shares(traces: dict[str, Trace]) -> None:
    rows: list[tuple[Any, ...]] = []
    for name, trace in traces.items():
        calls, moved = Counter[str](), Counter[str]()
        for node in trace.graphs[-1].nodes:
            group = kind(node)
            if group is not None:
                calls[group] += 1
                moved[group] += 0 if group == "view" else node_bytes(node)
        ours = moved["memory-bound"] + moved["left over"]
        cells = [
            f"{calls[group]}" + (f" / {kib(moved[group])}" if group != "view" else "") for group in CLASSES
        ]
        rows.append((name, *cells, f"{100 * moved['left over'] / ours:.1f} %"))
    table(("model", *(f"{group}: calls / KiB" for group in CLASSES), "left over of memory-bound"), rows)


def report_ops(traces: dict[str, Trace]) -> None:
    calls: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    moved = Counter[tuple[str, str]]()
    for name, trace in traces.items():
        for node in trace.graphs[-1].nodes:
            group = kind(node)
            if group is not None:
                calls[group, short(node)][name] += 1
                moved[group, short(node)] += 0 if group == "view" else node_bytes(node)
    order = sorted(calls, key=lambda key: (CLASSES.index(key[0]), -moved[key], key[1]))
    table(
        ("class", "op", "KiB", "calls by model"),
        [
            (g, f"`{op}`", kib(moved[g, op]), ", ".join(f"{m} {c}" for m, c in calls[g, op].items()))
            for g, op in order
        ],
    )


def report_attention(traces: dict[str, Trace]) -> None:
    rows = []
    for name, trace in traces.items():
        counted = Counter(
            (outcome.set_aside, outcome.mask, outcome.reason) for outcome in trace.attention[-1]
        )
        rows += [(name, n, "yes" if aside else "no", mask, why) for (aside, mask, why), n in counted.items()]
    table(("model", "calls", "set aside", "mask", "reason"), rows)


def report_generation(name: str, cache: str | None) -> None:
    """How a decoder with a compiled forward runs: graphs, steps, what a step computes and writes in place."""
    trace, module = Trace(), randomised(MODELS[name].build)
    module.generation_config.pad_token_id = 0
    prompt = torch.randint(VOCABULARY, (3, 9))
    options: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    if cache is not None:
        options["cache_implementation"] = cache
    expected = module.generate(prompt, **options)
    torch._dynamo.reset()
    module.forward = torch.compile(module.forward, backend=trace.backend)
    same = torch.equal(module.generate(prompt, **options), expected)
    print(f"### {name}, {cache or 'dynamic'} cache: tokens {'equal' if same else 'DIFFER'}\n")
    rows = []
    for number, graph in enumerate(trace.graphs):
        groups = Counter(group for node in graph.nodes if (group := kind(node)) is not None)
        left = Counter(short(node) for node in graph.nodes if kind(node) == "left over")
        writes = [
            node for node in graph.nodes if node.op == "call_function" and short(node).startswith("copy_")
        ]
        attention = (
            Counter(f"{o.mask}" for o in trace.attention[number]) if number < len(trace.attention) else {}
        )
        rows.append(
            (
                number,
                trace.runs[number],
                *(groups[group] for group in CLASSES),
                len(writes),
                ", ".join(f"{op} {count}" for op, count in left.items()) or "–",
                ", ".join(f"{mask} {count}" for mask, count in attention.items()),
            )
        )
    table(("graph", "runs", *CLASSES, "inputs written", "left over", "masks"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--ops", action="store_true", help="list every op")
    parser.add_argument("--dynamic", action="store_true", help="batch and length symbolic, a second size run")
    parser.add_argument("--generate", action="store_true", help="decoding with a cache instead")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    with torch.no_grad():
        if options.generate:
            for name in options.models or ("gpt2", "llama"):
                for cache in (None, "static"):
                    report_generation(name, cache)
            return
        with masks_always_built():
            traces = {
                name: traced(MODELS[name], dynamic=options.dynamic) for name in options.models or MODELS
            }
    if options.dynamic:
        table(
            ("model", "graphs for two sizes"), [(name, len(trace.graphs)) for name, trace in traces.items()]
        )
    else:
        report_shares(traces)
    if options.ops:
        report_ops(traces)
    report_attention(traces)


if __name__ == "__main__":
    sys.exit(main())
