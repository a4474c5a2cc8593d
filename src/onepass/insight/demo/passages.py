"""The text of the demonstration, and questions to ask of it."""

from dataclasses import dataclass

QUESTIONS = (
    "How do I make sure that a file is closed even if an error happens?",
    "What is the difference between a list and a tuple?",
    "How can a function remember variables of the function around it?",
    "How do I write a number in hexadecimal?",
    "What happens when an exception is not caught?",
    "How do I pause a generator and send a value back into it?",
)

# Shorter pieces are headings and lead-ins ("for example:"), which say nothing on their own.
_MIN_WORDS = 25
# About 130 word pieces: one subject, and well inside the 256 that the model was trained to read.
_MAX_WORDS = 90


@dataclass(frozen=True)
class Passage:
    """Some paragraphs of one topic of the language reference."""

    topic: str
    text: str

    @property
    def opening(self) -> str:
        """The text on one line."""
        return " ".join(self.text.split())


def passages() -> list[Passage]:
    """Cut Python's language reference into passages, in the order of their topics, each text once.

    Topics overlap; a text given twice would tie with itself as an answer.
    """
    from pydoc_data.topics import topics

    found: dict[str, Passage] = {}
    for topic, text in topics.items():
        for piece in _pieces(text):
            found.setdefault(piece, Passage(topic, piece))
    return list(found.values())


def _pieces(text: str) -> list[str]:
    """Join paragraphs until there are enough words, and cut where there would be too many."""
    pieces: list[str] = []
    current: list[str] = []
    for paragraph in filter(_is_prose, text.split("\n\n")):
        if _words(current) >= _MIN_WORDS and _words([*current, paragraph]) > _MAX_WORDS:
            pieces.append("\n\n".join(current))
            current = []
        current.append(paragraph.strip())
    if _words(current) >= _MIN_WORDS:
        pieces.append("\n\n".join(current))
    return pieces


def _is_prose(paragraph: str) -> bool:
    """Grammar and code samples are set three spaces in, and headings are underlined."""
    lines = paragraph.splitlines()
    return (
        bool(lines)
        and not all(line.startswith("   ") for line in lines)
        and not set(lines[-1]) <= set("*=-^~")
    )


def _words(paragraphs: list[str]) -> int:
    return sum(len(paragraph.split()) for paragraph in paragraphs)
