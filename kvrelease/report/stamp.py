"""The page of a store's stamp."""

from kvrelease.report.document import Block, Document, Facts, Text, Verdict, word
from kvrelease.stores.stamp import StampReport


def stamp_document(found: StampReport) -> Document:
    """Whose a store is."""
    blocks: list[Block] = []
    if found.verdict is not None:
        blocks.append(Verdict(word=word(found.verdict), reason=found.reason or ""))
    stamp = found.stamp
    if stamp is None:
        blocks.append(Text(text="It has no stamp."))
        return Document(title=f"Stamp of {found.place}", blocks=tuple(blocks))
    pairs = [
        ("namespace", stamp.namespace),
        ("release", "not named" if stamp.release is None else f"{stamp.release.name} ({stamp.release.source})"),
        ("stamped", f"{stamp.created:%Y-%m-%d %H:%M:%S} UTC by kvrelease {stamp.tool}"),
    ]
    if stamp.file is not None:
        pairs.append(("file", f"{stamp.file.name}, {stamp.file.size_bytes:,} bytes, sha256 {stamp.file.sha256}"))
    if stamp.adopted is not None:
        pairs.append(("adopted with entries, because", stamp.adopted))
    if stamp.replaced is not None:
        pairs.append(("in place of the stamp of", stamp.replaced))
    blocks.append(Facts(pairs=(*pairs, ("this run", str(found.action)))))
    return Document(title=f"Stamp of {found.place}", blocks=tuple(blocks))
