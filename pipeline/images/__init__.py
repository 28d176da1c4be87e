"""One image: its header and soundness, its conversion and resizing, and what it looks like."""
