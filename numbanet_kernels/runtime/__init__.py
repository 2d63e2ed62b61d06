"""How kernels are declared, compiled, launched, recorded and emulated, and where their arrays live."""
