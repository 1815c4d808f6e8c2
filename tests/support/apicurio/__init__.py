"""A real schema registry for tests."""
