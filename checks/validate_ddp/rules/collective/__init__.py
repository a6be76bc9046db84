"""Rules for programs with collective facts."""
