"""Every number that this project states, one command each."""
