"""A real server and real photos for tests, benchmarks and the demo; nothing in the product imports it."""
