"""Benchmarks: `python -m bench list` names the suites, bench/README.md says how they measure."""
