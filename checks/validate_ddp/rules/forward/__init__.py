"""Rules for programs with forward facts."""
