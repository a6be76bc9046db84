"""Confirmation of findings on the concrete syntax, suppressions, and lossless fixes."""
