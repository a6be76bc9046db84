"""Entries on the reading of files: ``lint``, ``edit.suppressions`` and ``program.incomplete`` raise them; no rule is
queried."""
