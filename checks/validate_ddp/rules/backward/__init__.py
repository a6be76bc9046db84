"""Rules for programs with backward facts."""
