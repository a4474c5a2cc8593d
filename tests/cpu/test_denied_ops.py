"""Names of ops that are to be left to PyTorch: those that a graph may hold are taken, others are errors that help."""

from __future__ import annotations

import pytest
import torch

from onepass.capture.backend import onepass
from onepass.capture.direct import direct
from onepass.capture.options import Options
from onepass.errors import BadOption, BadSetting

# Each with what an error has to say: misspelt, of another form, of another overload; and ops that PyTorch makes of
# others before a graph is ours, so that denying them would do nothing.
WRONG = {
    "no_such_op": "near it",
    "gellu": "near it: gelu",
    "aten.gelu": "near it: gelu",
    "gelu.Tensor": "near it: gelu",
    "layer_norm": "near it: native_layer_norm",
    "rms_norm": "_fused_rms_norm",
    "softmax": "_softmax",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_name_that_no_graph_holds_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_STRICT", "0")
    with pytest.raises(BadOption) as told:
        Options.read(options={"deny": ["add", name]})
    assert f"not {name!r}" in str(told.value) and WRONG[name] in str(told.value)
    monkeypatch.setenv("ONEPASS_DENY", f"add,{name}")
    for call in (Options, Options.read, lambda: Options.read(options={"deny": ["gelu"]})):
        with pytest.raises(BadSetting) as caught:
            call()
        assert f"not {name!r}" in str(caught.value) and WRONG[name] in str(caught.value)


def test_it_reaches_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_STRICT", "0")
    x = torch.randn(3, 4)
    compiled = torch.compile(lambda x: x.exp(), backend=onepass, options={"deny": ["no_such_op"]})
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no_such_op"):
        compiled(x)
    monkeypatch.setenv("ONEPASS_DENY", "no_such_op")
    with torch.no_grad(), pytest.raises(BadSetting, match="no_such_op"):
        direct(lambda x: x.exp())(x)


def test_names_that_graphs_hold_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without overload; ops that have no kernels, and those of other libraries."""
    names = [
        "gelu",
        "gelu.default",
        "add.Tensor",
        "native_layer_norm",
        "_softmax",
        "_fused_rms_norm",
        "topk",
        "mm",
    ]
    names += ["prims.convert_element_type.default", "quantized.linear.default", "scatter.src"]
    assert Options.read(options={"deny": names}).deny == set(names)
    monkeypatch.setenv("ONEPASS_DENY", ", ".join(names))
    assert Options.read(options={"deny": ["relu"]}).deny == {*names, "relu"}
