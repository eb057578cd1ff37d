"""The page of a prompt set."""

from kvrelease.report.document import Block, Document, Facts, Notes, Table, number, share
from kvrelease.workload.check import PromptsReport


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
            )
        ),
        Table(
            title="Shared prefixes",
            columns=("prefix", "prompts", "traffic"),
            rows=tuple((one.prefix, number(one.prompts), share(one.share)) for one in found.shared_prefixes),
        ),
    ]
    if found.warnings:
        blocks.append(Notes(title="Warnings", lines=tuple(one.message for one in found.warnings)))
    return Document(title=f"Prompt set {found.name}", blocks=tuple(blocks))
