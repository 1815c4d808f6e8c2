"""A real YARN for tests."""
