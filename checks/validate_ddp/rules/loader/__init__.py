"""Rules for programs with loader facts."""
