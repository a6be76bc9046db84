"""Rules for programs with absence facts."""
