"""Rules for programs with scheduler facts."""
