"""The page: a verdict and a list of sections, in one HTML file that asks nothing of a network.

Jinja2 escapes whatever comes from outside; templates, style and script are files beside this one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.analysis.html import text
from onepass.analysis.html.range_figure import Ranged, range_figure
from onepass.analysis.html.roofline_figure import Dot, RooflineFigure, roofline_figure
from onepass.analysis.words import IN_ENGLISH, Words
from onepass.errors import BadReportPath, CannotWrite, MissingPackage

if TYPE_CHECKING:
    from jinja2 import Environment

    from onepass.analysis.roofline import Roof

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """One part of a page. ``body`` is what `render` gave."""

    anchor: str
    title: str
    body: str


@dataclass(frozen=True)
class Fact:
    """One figure with its name."""

    name: str
    value: str


def page(
    title: str,
    verdict: str,
    facts: Sequence[Fact],
    sections: Sequence[Section],
    words: Words = IN_ENGLISH,
) -> str:
    """A whole page: the first line of the verdict large, then the facts, then the sections.

    Raises: MissingPackage
    """
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    return str(
        render(
            "page.html.j2",
            words,
            title=title,
            verdict=verdict.splitlines(),
            facts=facts,
            sections=sections,
            style=style,
            script=script,
            policy=policy,
        )
    )


def _digest(content: str) -> str:
    """What a content policy knows a script or a style by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def render(template: str, words: Words = IN_ENGLISH, **values: Any) -> str:
    """A template filled in; it has the words as ``t``. What a template made is markup for the next; all else is escaped.

    Raises: MissingPackage
    """
    environment = _environment()
    from markupsafe import Markup

    return Markup(environment.get_template(template).render(t=words, **values))


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise MissingPackage("a page", "Jinja2", "html") from error
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"bytes": text.nbytes, "us": text.us}
    return made


def paragraph(content: str) -> str:
    """A text as a paragraph."""
    from markupsafe import Markup

    return Markup("<p>{}</p>").format(content)


def joined(parts: Sequence[str]) -> str:
    """Markup one after the other."""
    from markupsafe import Markup

    return Markup("\n").join(parts)


def table_section(
    anchor: str,
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    kinds: str,
    words: Words = IN_ENGLISH,
) -> Section:
    """A table as a section of its own."""
    return Section(anchor, title, table(title, head, rows, kinds, words))


def table(label: str, head: Sequence[str], rows: Sequence[Sequence[str]], kinds: str, words: Words) -> str:
    """A table as markup. ``kinds`` has a letter a column: ``n`` numbers, ``w`` and ``s`` words that may wrap, many or
    a few, a space names.
    """
    styles = [{"n": "n", "w": "words", "s": "words few", " ": ""}[kind] for kind in kinds]
    return render("table.html.j2", words, label=label, head=head, rows=rows, styles=styles)


def ranges(
    label: str,
    axis: str,
    rows: Sequence[Ranged],
    keys: Sequence[tuple[str, str]],
    logarithmic: bool,
    words: Words,
) -> str:
    """Forecast and measurement, row by row, as a picture. ``keys`` explain its marks: style and name."""
    figure = range_figure(rows, logarithmic)
    if figure is None:
        return ""
    return render("ranges.html.j2", words, label=label, axis=axis, figure=figure, keys=keys)


def roofline_section(roofs: Sequence[Roof], dots: Sequence[Dot], words: Words) -> Section | None:
    """Roofs and kernels. Kernels without arithmetic are named below the figure."""
    figure = roofline_figure(roofs, dots)
    if figure is None:
        return None
    flat = [dot.name for dot in dots if dot.intensity <= 0 or dot.gflops <= 0]
    sources = [roof.source for roof in roofs]
    body = render(
        "roofline.html.j2", words, figure=_in_words(figure, roofs, dots, words), flat=flat, sources=sources
    )
    return Section("roofline", words("roofline"), body)


def _in_words(
    figure: RooflineFigure, roofs: Sequence[Roof], dots: Sequence[Dot], words: Words
) -> RooflineFigure:
    """A figure whose roofs and points say in a language what they are."""
    shown = [d for d in dots if d.intensity > 0 and d.gflops > 0]
    return replace(
        figure,
        title=words("roofline"),
        axis=words("roofline_axis"),
        roofs=tuple(replace(d, says=_roof(r, words)) for d, r in zip(figure.roofs, roofs, strict=True)),
        dots=tuple(replace(d, says=_point(shown[d.number - 1], words)) for d in figure.dots),
    )


def _roof(roof: Roof, words: Words) -> str:
    name = f"roof_{roof.kind.replace(' ', '_')}"
    kind = words(name) if words.has(name) else roof.kind
    gbps = f"{roof.bandwidth_gbps:,.0f} GB/s"
    if not roof.peak_gflops:
        return words("roof_slope", kind=kind, gbps=gbps)
    ridge = roof.peak_gflops / roof.bandwidth_gbps
    return words("roof_corner", kind=kind, gbps=gbps, peak=text.flops(roof.peak_gflops), ridge=ridge)


def _point(dot: Dot, words: Words) -> str:
    return words(
        "dot_measured" if dot.measured else "dot_predicted",
        name=dot.name,
        intensity=dot.intensity,
        rate=text.flops(dot.gflops),
    )


def check_path(path: str | Path) -> Path:
    """The path as one. Raises: BadReportPath where its name does not end in .html."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise BadReportPath(str(path))
    return Path(path)


def write(path: Path, content: str) -> None:
    """Raises: CannotWrite."""
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise CannotWrite(str(path), error.strerror or str(error)) from error


def in_frame(content: str) -> str:
    """A page as part of another, which leaves its styles and script alone."""
    return (
        f'<iframe srcdoc="{escape(str(content))}" title="onepass report" sandbox="allow-scripts" '
        'style="width: 100%; height: 720px; border: 0"></iframe>'
    )
