"""The directory where source and target meet: its protocol (`directory.py`) and the format of its files."""
