"""Rules for programs with seed facts."""
