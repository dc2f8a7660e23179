"""The CUDA driver functions, by what they are about."""
