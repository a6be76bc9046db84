"""Rules for programs with option facts."""
