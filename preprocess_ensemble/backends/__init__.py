"""What the two Triton models are made of; nothing outside a server runs it."""
