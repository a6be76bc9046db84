"""Mutation test of the checker: defects are planted in correct scripts, and each must be found where it is."""
