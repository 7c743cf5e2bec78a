"""What commands print for programs, as types."""
