"""Observes a script that trains on several ranks, and lets it run without GPUs; imported in its processes only."""
