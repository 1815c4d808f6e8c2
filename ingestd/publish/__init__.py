"""The write protocol: stage, register, place, announce, count, commit and its outcome."""
