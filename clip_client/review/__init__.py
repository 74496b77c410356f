"""The review server: pages on this computer where a person decides about found duplicates."""
