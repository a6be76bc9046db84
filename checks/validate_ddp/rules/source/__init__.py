"""Entries on the reading of files themselves; ``lint`` and ``edit.suppressions`` raise them, no rule is queried."""
