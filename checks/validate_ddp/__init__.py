"""Know that multi-GPU training is right before anyone pays for the GPUs."""

__version__ = "0.1.0"
