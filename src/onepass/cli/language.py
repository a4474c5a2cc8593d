"""The option that chooses a report's language."""

from typing import Annotated

import typer

Language = Annotated[str, typer.Option("--lang", help="Language of the report and its page: en or zh.")]
