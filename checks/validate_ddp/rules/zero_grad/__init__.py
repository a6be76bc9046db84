"""Rules for programs with zero_grad facts."""
