"""Provision real engines and a real pair of models for tests, docs and benchmarks on a machine without a GPU.

One module per concept: `errors` (what the outside world can do to an install), `places` (where things lie),
`progress` and `programs` (how a long step reports and runs), `cache` (recipe digests, manifests, the lock between
processes), `wheels` (pinned downloads), and one module per thing that is made: `tools`, `vllm`, `transformers4`,
`llamacpp`, `smollm2`. Only the standard library is imported: this runs before any virtual environment exists.
"""
