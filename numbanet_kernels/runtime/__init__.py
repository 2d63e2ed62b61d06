"""This package declares, compiles, launches, records and emulates kernels, and allocates memory for their arrays."""
