"""Rules for programs with sampler facts."""
