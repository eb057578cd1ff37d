"""One thin file per command: options in, one call, one artifact out. Heavy imports stay inside the functions."""
