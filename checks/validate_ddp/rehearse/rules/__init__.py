"""What a run shows of rules that reading shows too: each to move into its rule's file."""
