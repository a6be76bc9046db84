"""Rules for programs with iterate facts."""
