"""The command's side of a rehearsal: starts the ranks, listens, keeps the deadlines, and leaves nothing behind."""
