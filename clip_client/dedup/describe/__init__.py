"""What people read about a pair of photos: how one lies on the other, and what differs. It proves nothing."""
