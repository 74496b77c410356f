"""The choice of the server for the next request, the limits of images in flight, and the times of retries."""
