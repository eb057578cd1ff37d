"""One spelling of each setting of a runtime, to compare two that people or engines wrote. Pure; in no digest.

Only what an engine itself takes for the same is made equal. Sources: vllm 0.32.0, utils/torch_utils.py
(`STR_DTYPE_TO_TORCH_DTYPE`) and config/model.py (`half`, `float`); llama.cpp b11434, common/arg.cpp (`f16`, `bf16`).
"""

from __future__ import annotations

import re

_DTYPES = {
    "bf16": "bfloat16",
    "half": "float16",
    "fp16": "float16",
    "f16": "float16",
    "float": "float32",
    "fp32": "float32",
    "f32": "float32",
}
_NUMBERS = frozenset({"tensor_parallel_size", "pipeline_parallel_size", "block_size", "max_model_len"})
_WHOLE = re.compile(r"([0-9]+)(?:\.0*)?")
_NO_LETTER_OR_DIGIT = re.compile(r"[^a-z0-9]")


def one_spelling(field: str, value: str) -> str:
    """A value in the spelling that all values of its meaning share; that of a field that is not known stays."""
    text = value.strip()
    match field:
        case "dtype" | "kv_cache_dtype":
            name = text.lower().removeprefix("torch.")
            return _DTYPES.get(name, name)
        case "quantization":
            return text.lower()
        case "engine":  # llama.cpp, llamacpp
            return _NO_LETTER_OR_DIGIT.sub("", text.lower())
        case "version":
            return text[1:] if re.match("v[0-9]", text) else text
        case _ if field in _NUMBERS and (whole := _WHOLE.fullmatch(text)):
            return str(int(whole[1]))
        case _:
            return value
