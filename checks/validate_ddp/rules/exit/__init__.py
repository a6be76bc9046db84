"""Rules for programs with exit facts."""
