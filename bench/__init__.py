"""Benchmarks. `python -m bench list` prints the suites; bench/README.md explains how they measure."""
