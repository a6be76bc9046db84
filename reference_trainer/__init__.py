"""A compact DDP trainer to copy from; its parts come with their own issues."""
