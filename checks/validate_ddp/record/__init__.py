"""What a rehearsal recorded: events by rank with their call sites, what follows from them, what rules see in them."""
