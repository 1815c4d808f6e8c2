"""The commands. Only this package imports click and rich."""
