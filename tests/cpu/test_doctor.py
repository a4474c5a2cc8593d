"""What the doctor concludes from what it finds."""

from dataclasses import replace

import pytest

from onepass.cli.doctor import Check, Health, State, examine


def health(**states: State) -> Health:
    """Everything in place but for the states given."""
    names = {"compile": "compile", "host": "C++ compiler", "gpu": "GPU", "nvrtc": "NVRTC"}
    return Health(tuple(Check(name, states.get(key, State.OK), "found") for key, name in names.items()))


@pytest.mark.parametrize(
    ("found", "good", "says"),
    [
        (health(), True, "the GPU and the CPU"),
        (health(gpu=State.MISSING), True, "kernels on the CPU"),
        (health(gpu=State.MISSING, nvrtc=State.MISSING), True, "kernels on the CPU"),
        (health(host=State.MISSING), True, "kernels on the GPU"),
        (health(nvrtc=State.MISSING), False, "kernels on the CPU"),
        (health(host=State.MISSING, gpu=State.MISSING), False, "leaves everything to PyTorch"),
        (health(compile=State.MISSING), False, "can't run here"),
        (replace(health(), off=True), False, "switched off"),
    ],
)
def test_verdict(found: Health, good: bool, says: str) -> None:
    assert found.good is good
    assert says in found.verdict


def test_what_is_less_than_it_could_be_comes_with_advice() -> None:
    for check in examine().checks:
        assert check.found
        assert check.state is State.OK or check.advice, check.name


def test_no_compiler_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for name in ("CXX", "ONEPASS_CXX"):
        monkeypatch.delenv(name, raising=False)
    found = examine()
    assert found.state("C++ compiler") is State.MISSING
    assert (
        "leaves everything to PyTorch"
        in replace(
            found,
            checks=tuple(c if c.name != "GPU" else replace(c, state=State.MISSING) for c in found.checks),
        ).verdict
    )


def test_a_switched_off_cache_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_CACHE", "0")
    assert examine().state("cache") is State.LESS


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("ONEPASS_CXX_FLAGS", "-no-such-flag", "C++ compiler"),
        ("ONEPASS_FUEL", "many", "settings"),
        ("ONEPASS_DISABEL", "1", "settings"),
        ("ONEPASS_CACHE_DIR", "/proc/no/such/place", "cache"),
    ],
)
def test_what_is_there_and_does_not_work_is_found_out(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, check: str
) -> None:
    assert examine().state(check) is State.OK
    monkeypatch.setenv(name, value)
    assert examine().state(check) is not State.OK


def test_being_switched_off_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not examine().off
    monkeypatch.setenv("ONEPASS_DISABLE", "1")
    assert examine().off


def test_a_misspelt_setting_is_told_from_the_one_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_DISABEL", "1")
    (check,) = (c for c in examine().checks if c.name == "settings")
    assert "ONEPASS_DISABEL" in check.found
    assert "Did you mean ONEPASS_DISABLE" in check.advice
