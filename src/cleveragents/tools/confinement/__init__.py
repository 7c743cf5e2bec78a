"""What a tool may touch, and what holds it to that: bubblewrap and Landlock."""
