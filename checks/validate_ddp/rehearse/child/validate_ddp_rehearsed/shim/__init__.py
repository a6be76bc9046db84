"""CUDA as CPU: functions of torch patched in place so that a script for GPUs runs without them; one concern a file."""
