"""Rules for programs with data_parallel facts."""
