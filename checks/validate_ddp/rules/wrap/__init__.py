"""Rules for programs with wrap facts."""
