"""Save a release again; run by an interpreter whose transformers is the one that should write.

python resave.py DIRECTORY DIRECTORY
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def main(source: str, target: str) -> None:
    """Load weights, configuration and tokenizer, and save them."""
    transformers: Any = import_module("transformers")
    transformers.AutoModelForCausalLM.from_pretrained(source, torch_dtype="auto").save_pretrained(target)
    # Not AutoTokenizer: transformers 4 does not know the class that transformers 5 names in tokenizer_config.json.
    transformers.PreTrainedTokenizerFast.from_pretrained(source).save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
