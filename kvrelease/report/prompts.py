"""The page of a prompt set."""

from kvrelease.printable import number_of
from kvrelease.report.document import Block, Document, Facts, Notes, Table, first_rows, number, share
from kvrelease.workload.check import PromptsReport
from kvrelease.workload.tokens import TokenFigures

_PROMPTS_SHOWN = 20  # lines of findings
NOT_COUNTED = "not known: name --tokenizer MODEL or --engine-url"


def prompts_document(found: PromptsReport) -> Document:
    """What a prompt set holds."""
    blocks: list[Block] = [
        Facts(
            pairs=(
                ("source", found.source),
                ("prompts", f"{found.prompts} ({found.chat} chat, {found.completions} completions)"),
                ("total weight", number(found.total_weight, digits=1)),
                ("heaviest prompt", share(found.largest_share)),
                ("as varied as", f"{found.effective_prompts:.1f} equally frequent prompts"),
                ("digest", found.digest),
                *_token_facts(found.tokens),
            )
        ),
        Table(
            title="Shared prefixes",
            columns=("prefix", "prompts", "traffic", "tokens"),
            rows=tuple(
                (
                    one.prefix,
                    number(one.prompts),
                    share(one.share),
                    "not known" if one.tokens is None else number(one.tokens),
                )
                for one in found.shared_prefixes
            ),
        ),
    ]
    if len(found.key_spaces) > 1 or any(one.model or one.salt for one in found.key_spaces):
        blocks.append(
            Table(
                title="Key spaces",
                columns=("model", "salt", "prompts", "traffic"),
                rows=tuple(
                    (
                        one.model or "the served one",
                        "none" if one.salt is None else f"sha256 {one.salt}…",
                        number(one.prompts),
                        share(one.share),
                    )
                    for one in found.key_spaces
                ),
            )
        )
    if found.uncacheable:
        blocks.append(
            Table(
                title="Cannot be cached",
                columns=("why", "prompts", "traffic"),
                rows=tuple((one.message, number(len(one.prompt_ids)), share(one.share)) for one in found.uncacheable),
            )
        )
    if found.sensitive:
        table = Table(
            title="Likely secrets and personal data",
            columns=("prompt", "kind", "times"),
            rows=tuple((one.prompt_id, str(one.kind), number(one.count)) for one in found.sensitive),
        )
        blocks.append(first_rows(table, _PROMPTS_SHOWN))
    if found.warnings:
        blocks.append(Notes(title="Warnings", lines=tuple(one.message for one in found.warnings)))
    return Document(title=f"Prompt set {found.name}", blocks=tuple(blocks))


def _token_facts(figures: TokenFigures | None) -> tuple[tuple[str, str], ...]:
    if figures is None:
        return (("tokens", NOT_COUNTED),)
    unknown = sum(count for _, count in figures.unknown)
    return (
        ("tokens", f"{number(figures.total)} ({number(figures.shortest)} to {number(figures.longest)} a prompt)"),
        ("counted by", figures.by if not unknown else f"{figures.by}; of {number_of(unknown, 'prompt')} not known"),
        (
            f"blocks of {figures.block_tokens}",
            f"{number(figures.cacheable)} tokens can be hit, {number(figures.unique)} of them different",
        ),
    )
