"""The systems that ours is compared with: how each is started and called."""
