"""The directory where source and target meet: its protocol (`protocol.py`) and the format of its files."""
