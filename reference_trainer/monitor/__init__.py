"""Looking at a run: heartbeats that its ranks write, and what the terminal and a page make of them."""
