"""A profile told in a language: its verdict, its tables, and its page."""

from __future__ import annotations

from onepass.analysis.html.page import Fact, Section, joined, page, paragraph, ranges, table
from onepass.analysis.html.range_figure import Ranged
from onepass.analysis.html.report_page import report_sections
from onepass.analysis.words import Words
from onepass.insight.profile import Group, Profile


def verdict(found: Profile, words: Words) -> str:
    """One sentence on what fusing should save, and one on what it did."""
    if not found.groups:
        why = words.phrase(found.left[0]) if found.left else words("profile_no_ops")
        return words("profile_nothing", why=why)
    least, most = found.saving_us
    head = words(
        "profile_should",
        share=found.shares["memory-bound"],
        step=found.step_us / 1e3,
        least=max(least, 0) / 1e3,
        most=max(most, 0) / 1e3,
    )
    if not found.worth_it:
        head = words("profile_not_worth", head=head)
    held, of = found.held
    values = {"ratio": found.ratio, "held": held, "of": of, "device": found.device}
    if found.saved_us is None:  # the profiler lost a launch
        return f"{head}\n{words('profile_did_some', **values)}"
    steps = {"eager": found.step_us / 1e3, "ours": found.contender("onepass").step_us.median / 1e3}
    did = words("profile_did", saved=found.saved_us / 1e3, **steps, **values)
    return "\n".join([head, did, *([words("profile_noisy")] if found.disturbed else [])])


def shares_head(words: Words) -> list[str]:
    return [words("profile_step_of_eager"), words("profile_share")]


def shares_rows(found: Profile, words: Words) -> list[list[str]]:
    names = {kind: words(f"profile_{kind.replace('-', '_')}") for kind in found.shares}
    return [[names[kind], f"{share:.1%}"] for kind, share in found.shares.items()]


def contenders_head(words: Words) -> list[str]:
    names = ("profile_step", "profile_median", "profile_ratio", "profile_first", "profile_peak")
    return [words(name) for name in names]


def contenders_rows(found: Profile, words: Words) -> list[list[str]]:
    return [
        [
            c.name,
            f"{c.step_us.median / 1e3:.2f} ({c.step_us.low / 1e3:.2f} – {c.step_us.high / 1e3:.2f})",
            f"{found.step_us / c.step_us.median:.2f}",
            f"{c.first_s:.1f}",
            words("profile_peak_not_counted") if c.peak_bytes is None else f"{c.peak_bytes / 2**30:.2f}",
        ]
        for c in found.contenders
    ]


def groups_head(words: Words) -> list[str]:
    names = ("profile_bytes", "profile_eager", "profile_forecast", "profile_saved", "profile_verdict")
    return [words("profile_group"), words("times"), *(words(name) for name in names)]


def groups_rows(found: Profile, words: Words) -> list[list[str]]:
    return [
        [
            g.kernel,
            f"× {g.count}" if g.count > 1 else "",
            f"{g.eager_bytes / 1e6:.1f} → {g.fused_bytes / 1e6:.1f}",
            f"{g.eager_us:,.0f}",
            f"{g.saving_us[0]:,.0f} – {g.saving_us[1]:,.0f}",
            "–" if g.saved_us is None else f"{g.saved_us:,.0f}",
            words.phrase(g.verdict),
        ]
        for g in _ordered(found)
    ]


def profile_page(found: Profile, words: Words) -> str:
    """The page: verdict, where the time goes, contenders, forecast beside measurement, then the plan as explain has it.

    Raises: MissingPackage
    """
    sections = [_shares(found, words), _contenders(found, words), _groups(found, words)]
    if found.report is not None:
        sections += report_sections(found.report, words)
    shown = [section for section in sections if section is not None]
    return page("onepass profile", verdict(found, words), _facts(found, words), shown, words)


def _ordered(found: Profile) -> list[Group]:
    return sorted(found.groups, key=lambda g: -g.eager_us)


def _facts(found: Profile, words: Words) -> list[Fact]:
    least, most = found.saving_us
    held, of = found.held
    facts = [
        Fact(words("profile_step_fact"), f"{found.step_us / 1e3:.2f} ms"),
        Fact(words("profile_onepass_fact"), f"{found.contender('onepass').step_us.median / 1e3:.2f} ms"),
        Fact(
            words("profile_forecast_fact"),
            words("profile_range", least=f"{least / 1e3:.2f}", most=f"{most / 1e3:.2f}"),
        ),
    ]
    if found.saved_us is not None and of:
        facts += [
            Fact(words("profile_saved_fact"), f"{found.saved_us / 1e3:.2f} ms"),
            Fact(words("profile_held_fact"), words("profile_held", held=held, of=of)),
        ]
    return [*facts, Fact(words("profile_id"), found.id)]


def _shares(found: Profile, words: Words) -> Section:
    title = words("profile_shares")
    rows = [
        Ranged(name, 0.0, 100 * share, None, f"{share:.1%}")
        for (name, _), share in zip(shares_rows(found, words), found.shares.values(), strict=True)
    ]
    return Section("shares", title, ranges(title, words("profile_axis_shares"), rows, (), False, words))


def _contenders(found: Profile, words: Words) -> Section:
    title = words("profile_contenders")
    body = table(title, contenders_head(words), contenders_rows(found, words), " nnnn", words)
    return Section("contenders", title, body)


def _groups(found: Profile, words: Words) -> Section | None:
    if not found.groups:
        return None
    title = words("profile_groups")
    keys = (("forecast-bar", words("range_forecast")), ("point", words("range_measured")))
    picture = ranges(
        title, words("profile_axis"), [_ranged(g, words) for g in _ordered(found)], keys, False, words
    )
    rows = table(title, groups_head(words), groups_rows(found, words), " nnnnns", words)
    return Section("groups", title, joined([paragraph(words("profile_picture")), picture, rows]))


def _ranged(group: Group, words: Words) -> Ranged:
    least, most = group.saving_us
    saved = "–" if group.saved_us is None else f"{group.saved_us:,.0f}"
    name = f"{group.kernel} × {group.count}" if group.count > 1 else group.kernel
    return Ranged(
        name,
        least,
        most,
        group.saved_us,
        words("profile_of_forecast", saved=saved, least=f"{least:,.0f}", most=f"{most:,.0f}"),
    )
