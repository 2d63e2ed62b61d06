"""Winograd's filtering of convolutions, on CUDA of whole images, on the CPU also of kept tiles or kept blocks of channels."""
