"""The host compiler: found or missed, refusing a source, compiling through the cache."""

from __future__ import annotations

import ctypes
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from onepass.analysis.resources import Resources
from onepass.capture.direct import direct
from onepass.codegen.emit import Source
from onepass.errors import BadSetting, CompileError, LoadError, NoCompiler
from onepass.runtime import hostcc, load
from onepass.runtime.cache import DiskCache, Entry
from onepass.runtime.launch_cpu import load_kernel

ADD = 'extern "C" int add(int a, int b) { return a + b; }\n'


def test_a_source_becomes_a_function(tmp_path: Path) -> None:
    hostcc.compile_shared(ADD, tmp_path / "add.so", name="add")
    assert ctypes.CDLL(str(tmp_path / "add.so")).add(2, 3) == 5


def test_a_refused_source_shows_numbered_lines_and_the_message(tmp_path: Path) -> None:
    source = "int a;\n" * 40 + "int b = nonsense;\n" + "int c;\n" * 40
    source = source.replace("int a;\n", "extern int a;\n").replace("int c;\n", "extern int c;\n")
    with pytest.raises(CompileError) as caught:
        hostcc.compile_shared(source, tmp_path / "x.so", name="broken")
    error, text = caught.value, str(caught.value)
    assert error.lines == (41,)
    assert error.source == source
    assert ">   41 | int b = nonsense;" in text
    assert "nonsense" in error.message
    assert "-fno-math-errno" in error.command
    assert text.count(" | ") < 20


def test_without_a_compiler_the_error_names_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CXX", "c++-from-nowhere")
    with pytest.raises(NoCompiler) as caught:
        hostcc.find_compiler()
    assert caught.value.looked_for == ("c++-from-nowhere", "g++", "clang++")
    assert "apt-get install g++" in str(caught.value)


@pytest.mark.parametrize("kind", ["nowhere", "no program", "a folder"])
def test_a_named_compiler_that_is_not_there_is_an_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one would be taken in silence; also with PyTorch to fall back on."""
    named = tmp_path / "cxx"
    if kind == "no program":
        named.write_text("text")
    elif kind == "a folder":
        named.mkdir()
    monkeypatch.setenv("ONEPASS_CXX", str(named))
    monkeypatch.setenv("ONEPASS_STRICT", "0")
    for call in (
        hostcc.find_compiler,
        lambda: hostcc.compile_shared(ADD, tmp_path / "add.so", name="add"),
        lambda: hostcc.compile_cached(ADD, name="add", cache=DiskCache(tmp_path / "cache")),
        lambda: load_kernel(ADD, "add", cache=DiskCache(tmp_path / "cache")),
    ):
        with pytest.raises(BadSetting, match=f"ONEPASS_CXX='{named}'.*\n.*Unset ONEPASS_CXX"):
            call()
    with torch.no_grad(), pytest.raises(BadSetting, match="ONEPASS_CXX"):
        direct(lambda x: x.exp() * 0.1234)(torch.randn(3, 5))


def test_a_compiler_of_other_programs_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hostcc.find_compiler()
    monkeypatch.setenv("CXX", "no-such-ccache g++")
    assert hostcc.find_compiler() == expected


def test_the_named_compiler_is_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "mine"
    named.symlink_to(hostcc.find_compiler().path)
    monkeypatch.setenv("ONEPASS_CXX", str(named))
    assert hostcc.find_compiler().path == str(named)


@pytest.mark.parametrize(
    ("does", "says"),
    [("exit 0", "wrote nothing"), ("exit 3", "no message"), ("echo no luck >&2; exit 1", "no luck")],
)
def test_a_compiler_that_fails_without_naming_a_line_shows_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, says: str
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\n{does}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("ONEPASS_CXX", str(compiler))
    with pytest.raises(CompileError, match=says) as raised:
        hostcc.compile_shared(ADD, tmp_path / "one.so", name="one")
    assert ADD.strip() not in str(raised.value)
    assert str(compiler) in str(raised.value)


def test_the_cache_knows_another_compiler_and_other_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path / "cache")
    compiler = hostcc.find_compiler().path
    first = hostcc.compile_cached(ADD, name="add", cache=cache, metadata={"note": 1})
    assert hostcc.compile_cached(ADD, name="add", cache=cache).hit
    assert first.metadata["note"] == 1
    wrapper = tmp_path / "cxx"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    assert not hostcc.compile_cached(ADD, name="add", cache=cache).hit
    os.utime(wrapper, ns=(1, 1))  # the same name, another program
    assert not hostcc.compile_cached(ADD, name="add", cache=cache).hit
    monkeypatch.setenv("ONEPASS_CXX_FLAGS", "-DX=1")
    assert not hostcc.compile_cached(ADD, name="add", cache=cache).hit


class Cleared(DiskCache):
    """A cache that another process clears after each of the first calls, ``times`` of them."""

    times = 1

    def get_or_build(self, *given: Any) -> Entry:
        entry = super().get_or_build(*given)
        if self.times:
            self.times -= 1
            self.clear()
        return entry


def test_an_entry_cleared_before_it_is_loaded_is_built_again(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = load_kernel(ADD, "add", cache=Cleared(tmp_path))
    assert kernel.entry.path.exists()
    never = Cleared(tmp_path / "other")
    never.times = 9
    with pytest.raises(LoadError, match="add"):
        load_kernel(ADD, "add", cache=never)


def test_machine_code_cleared_before_it_is_read_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin = load.Binary(b"machine code", Resources(8, 0, 0, 0))
    monkeypatch.setattr(load, "compile_cubin", lambda *_: cubin)
    monkeypatch.setattr(load, "version", lambda arch: "13.0")
    cache = Cleared(tmp_path)
    monkeypatch.setattr(load, "open_cache", lambda: cache)
    assert load.binary(Source("k", "text", ()), "sm_90") == cubin
    assert cache.counters.misses == 2


def test_a_missing_function_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="subtract"):
        load_kernel(ADD, "subtract", cache=DiskCache(tmp_path))


def test_contraction_is_off_and_nan_is_kept(tmp_path: Path) -> None:
    source = (
        'extern "C" float f(float x) { float p = x * x; return p - x * x; }\n'
        'extern "C" int is_nan(float x) { return x != x; }\n'
    )
    hostcc.compile_shared(source, tmp_path / "f.so", name="f")
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    library.f.argtypes, library.f.restype = (ctypes.c_float,), ctypes.c_float
    library.is_nan.argtypes = (ctypes.c_float,)
    assert library.f(1.1) == 0.0
    assert library.is_nan(library.f(3e38)) == 1  # inf - inf, as each operation rounded gives
    assert library.is_nan(float("nan")) == 1
