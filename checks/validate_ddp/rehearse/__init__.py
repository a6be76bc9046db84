"""Rehearsals: an unmodified training script on N CPU processes with gloo, observed, and judged by the catalogue."""
