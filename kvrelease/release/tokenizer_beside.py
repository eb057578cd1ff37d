"""Files that some engine makes a tokenizer of, and that the tokenizer's digest, which is frozen, does not cover. Pure.

Sources: transformers 4.57 and 5.24.0, models/*/tokenization_*.py (`VOCAB_FILES_NAMES`: `source.spm`, `bpe.codes`,
`dict.txt`, ...), tokenization_utils_base.py (`get_fast_tokenizer_file`: `tokenizer.4.0.0.json`); OpenAI's GPT-2
(`encoder.json`, `vocab.bpe`); RWKV (`rwkv_vocab_v20230424.txt`); llama2.c (`tokenizer.bin`).
"""

from __future__ import annotations

from kvrelease.printable import listed
from kvrelease.release.fingerprint import Fingerprint


def compare_beside(old: Fingerprint, new: Fingerprint) -> str | None:
    """Why equal digests do not prove that two tokenizers are the same; None where nothing speaks against it.

    A fingerprint that was saved before such files were kept says nothing of them: that speaks where the other has any.
    """
    before, after = (None if side.details is None else side.details.tokenizer_beside for side in (old, new))
    if before is None or after is None:
        unsaid = sorted((before or {}).keys() | (after or {}).keys())
        what = f"whether {listed(unsaid)} changed a fingerprint that was saved earlier does not say" if unsaid else None
    else:
        differ = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        what = f"{listed(differ)} changed" if differ else None
    if what is None:
        return None
    return f"{what}: some engine makes the tokenizer of such a file, which the tokenizer's digest does not cover"
