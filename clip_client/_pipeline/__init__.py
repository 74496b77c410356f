"""Turn an iterable of images or texts into their vectors; modules here open no connection.

The diagram shows the way of one image through one call, from top to bottom. A text differs only in its encoder,
``TextEncoder``::

    the caller's iterable
      │  source.Source           takes images, at most max_ahead before they are delivered
      ▼
    stream.Stream                one call: its images in chunks, delivered in order if asked
      │  images.read_image       reads a file, or turns a picture in memory into a file
      │  encoder.ImageEncoder    reduces it to the pixels that the model takes (in worker threads)
      │  submit(Chunk)
      ▼
    sender.Sender                all calls: packs chunks into requests, retries, gives chunks their results
      │  infer() -> Answer
      ▼
    _balancing.Server            one server: its concurrency limit, its back-off and its transport
"""
