"""What runs inside Triton, and what builds, checks and starts it; nothing here decides which photos are copies."""
