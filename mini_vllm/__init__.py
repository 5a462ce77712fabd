"""A small vLLM on MLX, written to be read."""

__version__ = "0.1.0"
