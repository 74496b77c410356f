"""What photos are compared by: size, hashes, capture time, metadata and vector. Nothing here compares two photos."""
