"""Bytes: objects in packs, trees of them, and putting a tree back."""
