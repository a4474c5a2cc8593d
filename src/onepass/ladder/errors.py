"""What can be wrong with a ladder or with what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.errors import OnepassError


@dataclass(eq=False)
class BadLadder(OnepassError):
    """A folder of kernels can't be read as a ladder."""

    path: str
    problem: str

    def what(self) -> str:
        return f"{self.path}: {self.problem}"

    def advice(self) -> str:
        return "docs/ladder/new.md says what a ladder's folder holds."


@dataclass(eq=False)
class NoSuchRung(OnepassError):
    """A ladder has no rung, or there is no ladder, of a name."""

    name: str
    where: str
    near: tuple[str, ...]

    def what(self) -> str:
        return f"there is no {self.name!r} among {self.where}"

    def advice(self) -> str:
        return f"Near it: {', '.join(self.near)}."


@dataclass(eq=False)
class BadRung(OnepassError):
    """A kernel file can't be run as a rung."""

    path: str
    problem: str
    remedy: str

    def what(self) -> str:
        return f"{self.path}: {self.problem}"

    def advice(self) -> str:
        return self.remedy


class NotAtThisShape(BadRung):
    """A rung says that it takes other rows or columns: the rungs beside it may take these."""
