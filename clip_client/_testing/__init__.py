"""Parts of :mod:`clip_client.testing`; nothing in the product imports them."""
