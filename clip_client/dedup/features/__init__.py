"""The features by which photos are compared: size, hashes, capture time, metadata and vector."""
