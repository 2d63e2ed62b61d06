"""Winograd's filtering of convolutions on the CPU: of whole images, of kept tiles, or of kept blocks of channels."""
