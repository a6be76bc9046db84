"""Mutation test of the checker: each defect that ``plants.py`` reads from the correct scripts must be found there."""
