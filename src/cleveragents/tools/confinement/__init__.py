"""What a tool may touch, enforced by bubblewrap or Landlock."""
