"""Settings are typed and read at use; errors carry fields and advice."""

from __future__ import annotations

import pickle

import pytest

from onepass import errors, settings
from onepass.errors import BadSetting, CompileError, NoCompiler, numbered


def test_settings_are_read_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEPASS_DISABLE", raising=False)
    assert settings.DISABLE.read() is False
    for text, value in (("1", True), ("true", True), ("OFF", False), ("", False)):
        monkeypatch.setenv("ONEPASS_DISABLE", text)
        assert settings.DISABLE.read() is value
    monkeypatch.setenv("ONEPASS_DENY", "gelu, add.Tensor")
    assert settings.DENY.read() == ("gelu", "add.Tensor")
    monkeypatch.setenv("ONEPASS_FUEL", "3")
    assert settings.FUEL.read() == 3


@pytest.mark.parametrize(("name", "value"), [("DISABLE", "perhaps"), ("FUEL", "-1"), ("FUEL", "many")])
def test_a_bad_value_is_an_error_that_says_what_is_expected(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = getattr(settings, name)
    monkeypatch.setenv(setting.name, value)
    with pytest.raises(BadSetting) as caught:
        setting.read()
    assert caught.value.name == setting.name
    assert caught.value.value == value
    assert setting.expected in str(caught.value)


def test_the_table_holds_every_setting_once() -> None:
    defined = [v for v in vars(settings).values() if isinstance(v, settings.Setting)]
    assert sorted(s.name for s in settings.SETTINGS) == sorted(s.name for s in defined)
    assert len({s.name for s in settings.SETTINGS}) == len(settings.SETTINGS)
    assert all(s.name.startswith("ONEPASS_") and s.doc.endswith(".") for s in settings.SETTINGS)


def test_errors_end_with_advice_and_survive_pickling() -> None:
    examples = [
        NoCompiler(("g++", "clang++")),
        CompileError("k", "a\nb\nc", "<stdin>:2:1: error: no", "g++ -O3", (2,)),
        errors.LoadError("k", "/x.so", "no such symbol"),
        BadSetting("ONEPASS_FUEL", "x", "a whole number"),
        errors.NoCacheSpace("/cache", "full"),
    ]
    for error in examples:
        assert str(error) == f"{error.what()}\n{error.advice()}"
        assert error.advice()
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert isinstance(again, errors.OnepassError)


def test_numbered_lines_mark_and_skip() -> None:
    source = "\n".join(f"line {i}" for i in range(1, 31))
    text = numbered(source, (20,), margin=1)
    assert text.splitlines() == ["  ...", "    19 | line 19", ">   20 | line 20", "    21 | line 21"]
    assert len(numbered("a\nb").splitlines()) == 2
