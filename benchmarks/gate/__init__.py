"""How often the release gate errs, measured: observations recorded from real engines, and runs drawn from them.

`python -m benchmarks.gate record` trains the releases and records pools of observations; `run` draws thousands of clean
and stale runs from the pools and judges each with the gate's own code; `report` writes the tables and the plot.
"""
