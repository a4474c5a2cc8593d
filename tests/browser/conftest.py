"""A headless Chromium: Playwright's own, or one on the PATH."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing(reason: str) -> None:
    """`make test` says that these tests are skipped; `make test-browser` asked for them, so there it is a failure."""
    message = f"no browser tests: {reason}; Debian and Ubuntu: apt-get install chromium"
    if os.environ.get("BROWSER_REQUIRED"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        missing("the package playwright is not installed")
    with sync_playwright() as playwright:
        kind = playwright.chromium
        here = next((path for name in NAMES if (path := shutil.which(name))), None)
        own = kind.executable_path if Path(kind.executable_path).exists() else None
        if own is None and here is None:
            missing(f"no Chromium: looked for {', '.join(NAMES)} and for Playwright's own")
        try:
            # A container's root can't use Chromium's sandbox; the only pages opened are those made here.
            browser = kind.launch(executable_path=own or here, args=["--no-sandbox"])
        except Error as error:
            missing(f"Chromium does not start: {error.message.splitlines()[0]}")
        yield browser
        browser.close()
