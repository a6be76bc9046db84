"""Rules for programs with load facts."""
