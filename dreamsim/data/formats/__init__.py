"""Other people's recordings: one file for each format, read and written in a child process (child.py)."""
