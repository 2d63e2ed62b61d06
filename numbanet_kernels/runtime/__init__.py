"""Declaring, compiling, launching, recording and emulating kernels, and memory for their arrays."""
