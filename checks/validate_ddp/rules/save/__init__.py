"""Rules for programs with save facts."""
