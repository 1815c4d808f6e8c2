"""The commands; the only door to the terminal (click and rich)."""
