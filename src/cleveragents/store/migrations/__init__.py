"""How older stores are brought up to date, one step per file."""
