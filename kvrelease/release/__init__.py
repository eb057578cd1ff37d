"""What a release is: read, digest, compare."""
