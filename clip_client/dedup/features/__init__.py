"""What is known about one photo by its content: size, hashes, capture time, metadata, vector."""
