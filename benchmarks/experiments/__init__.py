"""One module for each question; ``python -m benchmarks`` lists them."""
