"""The release gate: does anything that users get come from another release's KV?"""
