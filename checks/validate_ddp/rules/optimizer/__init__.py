"""Rules for programs with optimizer facts."""
