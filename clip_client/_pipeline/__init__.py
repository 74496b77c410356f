"""From an iterable of images to their vectors; no module here opens a connection.

One image on its way through one call, from top to bottom::

    the caller's iterable
      │  source.Source           takes images, never more than max_ahead that are not delivered yet
      ▼
    pending_image.PendingImage   what is known of one image: its source, payload, deadline and result
      │  images.read_image       reads a file, or turns a picture in memory into a file
      │  encoder.ImageEncoder    reduces it to the pixels that the model takes (in worker threads)
      ▼
    stream.Stream                one call: starts the steps above, delivers the results, in order if asked
      │  submit()         ▲
      ▼                   │  set_result()
    sender.Sender                all calls: packs pending images into requests, retries, unpacks the answers
      │  infer()          ▲
      ▼                   │  Answer
    _balancing.Server            one server: its concurrency limit, its back-off and its transport
"""
