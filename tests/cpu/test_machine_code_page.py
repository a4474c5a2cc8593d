"""Machine code in a report's page: kernels planned for GPUs that are not here, read when asked for, or why not."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from harness.pages import Read
from onepass.analysis.html.report_page import report_page
from onepass.analysis.report import Report
from onepass.analysis.words import Words
from onepass.api import report
from onepass.build import Plan
from onepass.capture.absent import generate
from onepass.errors import NoNvrtc
from onepass.runtime import disassemble
from onepass.runtime.load import binary


def block(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x, approximate="tanh") + residual, x.shape[-1:], weight, bias)


def planned(arch: str) -> tuple[Plan, Report]:
    """GELU + Add + LayerNorm, 1024 columns."""
    inputs = (torch.randn(64, 1024), torch.randn(64, 1024), torch.ones(1024), torch.zeros(1024))
    (graph,) = generate(arch, block, inputs).graphs
    return graph.plan, report([graph.plan], [[]], [])


@pytest.fixture(scope="module")
def hopper() -> tuple[Plan, Report]:
    return planned("sm_90")


def printed(plan: Plan, folder: Path) -> Counter[str]:
    """Opcodes with their widths, from the text that the disassembler prints for people."""
    (built,) = plan.kernels
    (folder / "k.cubin").write_bytes(binary(built.source, "sm_90").code)
    tool = disassemble.tool("nvdisasm")
    assert tool
    text = subprocess.run(
        [tool, "-c", str(folder / "k.cubin")], capture_output=True, text=True, check=True
    ).stdout
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]+)", text)
    return Counter(
        ".".join([name.partition(".")[0], *(["128"] if ".128" in name else [])])
        for name in opcodes
        if name != "NOP"
    )


def facts(page: str) -> dict[str, str]:
    read = Read.page(page)
    return {
        e.text: read.elements[i + 1].text
        for i, e in enumerate(read.elements)
        if e.tag == "dt" and any("code" in p.attributes.get("class", "").split() for p in e.parents)
    }


def test_a_kernel_for_hopper_shows_what_its_machine_code_holds(
    hopper: tuple[Plan, Report], tmp_path: Path
) -> None:
    plan, told = hopper
    expected = printed(plan, tmp_path)
    found = facts(report_page(told))
    jumps = 1  # the jump to itself that ends a function is no instruction of the kernel
    assert int(found["instructions"]) == sum(expected.values()) - jumps
    assert found["global loads"].startswith(f"{expected['LDG.128']} × 128 bit") and expected["LDG.128"] >= 2
    assert found["global stores"] == f"{expected['STG.128']} × 128 bit"
    assert int(found["special-function instructions"]) == expected["MUFU"] > 0
    assert int(found["barriers"]) == expected["BAR"]
    assert int(found["shuffles"]) == expected["SHFL"] > 0
    assert found["spills to local memory"] == "none"
    assert facts(report_page(told, Words("zh"))).keys().isdisjoint(found)


def test_nothing_is_read_before_it_is_asked_for(
    hopper: tuple[Plan, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = hopper

    def fail(*_: object) -> None:
        raise AssertionError("read too early")

    monkeypatch.setattr(disassemble, "disassemble", fail)
    told = report([plan], [[]], [])
    assert told.text and told.to_dict() and told.verdict
    with pytest.raises(AssertionError, match="too early"):
        report_page(told)


def test_without_a_disassembler_the_page_says_so(
    hopper: tuple[Plan, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disassemble, "tools", lambda name: [])
    told = report([hopper[0]], [[]], [])
    page = report_page(told)
    assert "machine code not read: nvdisasm is missing: pip install" in page.replace("&#39;", "'")
    assert facts(page) == {} and "未读取机器码\uff1a缺少 nvdisasm\uff1a" in report_page(told, Words("zh"))


def test_an_architecture_that_no_disassembler_knows_is_said_plainly() -> None:
    """Volta: nvdisasm 13 refuses its machine code."""
    try:
        _, told = planned("sm_70")
    except NoNvrtc as missing:
        pytest.skip(missing.what())
    page = report_page(told)
    assert isinstance(told.kernels[0].machine_code, str)
    assert "machine code not read: " in page and facts(page) == {}


def test_without_a_compiler_the_page_says_so(
    hopper: tuple[Plan, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NoNvrtc("sm_90", ("torch",))

    monkeypatch.setattr(disassemble, "binary", refuse)
    page = report_page(report([hopper[0]], [[]], []))
    assert "machine code not read: no NVRTC that compiles for sm_90; looked in torch" in page


def test_a_kernel_of_the_cpu_has_none() -> None:
    import onepass

    told = onepass.explain(lambda x: torch.relu(x) + 1, torch.randn(8, 32))
    assert told.kernels[0].machine_code is None
    assert "achine code" not in report_page(told)
