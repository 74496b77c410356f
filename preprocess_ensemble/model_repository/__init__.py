"""The small files of a model repository, read and written: ``config.pbtxt`` and the passport."""
