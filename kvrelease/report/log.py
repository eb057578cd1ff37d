"""The page of a traffic log."""

import datetime

from kvrelease.printable import number_of
from kvrelease.report.document import Block, Document, Facts, Notes, Table, number
from kvrelease.report.prompts import NOT_COUNTED
from kvrelease.workload.log_check import MAX_DISTINCT
from kvrelease.workload.log_report import LoggedFinding, LogReport

# Traces count from their own start; what is below is no time since 1970.
_FIRST_CLOCK_S = 1e8


def log_document(found: LogReport) -> Document:
    """What a traffic log holds."""
    pairs = [
        ("source", found.source),
        ("format", str(found.form)),
        ("requests", f"{number(found.requests)} ({number(found.chat)} chat, {number(found.completions)} completions)"),
        *([("stand for", f"{number(found.weight)} requests")] if found.weight != found.requests else []),
        *([("without text", number(found.without_text))] if found.without_text else []),
        *([("with images", number(found.with_images))] if found.with_images else []),
        ("damaged records", number(found.damaged)),
        *([("passed over", passed_over_text(found.passed_over))] if found.passed_over else []),
        ("time", _span(found)),
        *_token_facts(found),
        ("system prompts", f"{number(found.openings)} different{_or_more(found.openings)}"),
        ("key spaces", f"{number(found.key_spaces)}{_or_more(found.key_spaces)}"),
    ]
    blocks: list[Block] = [Facts(pairs=tuple(pairs))]
    if found.top_openings:
        blocks.append(
            Table(
                title="Most frequent system prompts",
                columns=("digest", "requests", "characters"),
                rows=tuple((one.digest, number(one.requests), number(one.characters)) for one in found.top_openings),
            )
        )
    if found.key_spaces > 1:
        blocks.append(
            Table(
                title="Most frequent key spaces",
                columns=("model", "salt", "requests"),
                rows=tuple(
                    (
                        one.model or "the served one",
                        "none" if one.salt is None else f"sha256 {one.salt}…",
                        number(one.requests),
                    )
                    for one in found.top_key_spaces
                ),
            )
        )
    blocks += _findings("Changing text near the front: nothing behind it can be hit", found.volatile)
    blocks += _findings("Likely secrets and personal data", found.sensitive)
    if found.damage:
        blocks.append(Notes(title="Damage", lines=found.damage))
    return Document(title="Traffic log", blocks=tuple(blocks))


def passed_over_text(counts: tuple[tuple[str, int], ...]) -> str:
    """How many records of a log are no requests, by reason."""
    return ", ".join(f"{number(count)} {reason}" for reason, count in counts)


def _or_more(count: int) -> str:
    return " or more" if count >= MAX_DISTINCT else ""


def _findings(title: str, findings: tuple[LoggedFinding, ...]) -> list[Block]:
    if not findings:
        return []
    rows = tuple((one.kind, number(one.requests), number(one.count), one.first) for one in findings)
    return [Table(title=title, columns=("kind", "requests", "times", "first"), rows=rows)]


def _span(found: LogReport) -> str:
    if found.from_s is None or found.until_s is None:
        return "not told"
    if found.from_s < _FIRST_CLOCK_S:
        return f"{number(found.until_s - found.from_s)} s"
    return f"{_moment(found.from_s)} to {_moment(found.until_s)}"


def _moment(seconds: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s"


def _token_facts(found: LogReport) -> list[tuple[str, str]]:
    tokens = found.tokens
    if tokens is None:
        return [("tokens", NOT_COUNTED)]
    unknown = f"; of {number(tokens.unknown)} not known" if tokens.unknown else ""
    return [
        (
            "tokens",
            f"{number(tokens.total)} in {number_of(tokens.counted, 'request')}, {number(tokens.longest)} at most",
        ),
        ("counted by", f"{tokens.by}{unknown}"),
        ("cannot be cached", f"{number(tokens.uncacheable)} no longer than a block of {tokens.block_tokens} tokens"),
    ]
