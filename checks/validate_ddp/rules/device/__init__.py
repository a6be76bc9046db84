"""Rules for programs with device facts."""
