"""Where a verb writes: human text to one console, one JSON document to standard output."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from rich.console import Console

EXIT_FINE, EXIT_WORSE, EXIT_MISUSE = 0, 1, 2
# The reader left: 128 + SIGPIPE, as a shell reports of any program that writes to a closed pipe.
EXIT_CLOSED_PIPE = 141

# A table read from a log or a pipe must not be squeezed into the 80 columns assumed without a terminal.
_WIDTH_WITHOUT_TERMINAL = 120


@dataclass(frozen=True)
class Output:
    """A verb's output: `console` takes human text, `document` the JSON that `--json` asks for."""

    console: Console
    json: bool

    @classmethod
    def open(cls, json: bool) -> "Output":
        """With `json` the human text goes to standard error: standard output holds the document alone."""
        stream = sys.stderr if json else sys.stdout
        width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
        return cls(Console(file=stream, width=width, highlight=False, emoji=False), json)

    def text(self, text: str) -> None:
        """Print text as it is, unwrapped: reports carry their own line breaks."""
        self.console.print(text, markup=False, soft_wrap=True)

    def document(self, content: Mapping[str, Any]) -> None:
        """Print the JSON document if it was asked for."""
        if self.json:
            sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")

    @contextmanager
    def foreign_prints(self) -> Iterator[None]:
        """Send what a user's file prints to standard error while a document is being made."""
        if self.json:
            with redirect_stdout(sys.stderr):
                yield
        else:
            yield
