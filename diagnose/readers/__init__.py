"""Log files to Runs: one file per format, found by content."""
