"""From an iterable of images or texts to their vectors; no module here opens a connection.

One image on its way through one call, from top to bottom; a text differs only in its encoder, ``TextEncoder``::

    the caller's iterable
      │  source.Source           takes images, never more than max_ahead that are not delivered yet
      ▼
    stream.Stream                one call: the futures of its images, delivered in order if asked
      │  images.read_image       reads a file, or turns a picture in memory into a file
      │  encoder.ImageEncoder    reduces it to the pixels that the model takes (in worker threads)
      │  submit() -> PendingItem, a future
      ▼
    sender.Sender                all calls: packs items into requests, retries, sets the futures' results
      │  infer() -> Answer
      ▼
    _balancing.Server            one server: its concurrency limit, its back-off and its transport
"""
