"""Exact search for photos by words, by another photo, or by a vector, in a store or in the output of ``embed``.

:class:`PhotoIndex` holds vectors and finds the nearest; ``query`` reads the query of a person; ``find`` lists each
picture that fits the ``filters`` once, with its files. Nothing in ``dedup`` imports this package.
"""

from clip_client.search.photo_index import Hit, PhotoIndex
from clip_client.search.query import QueryError, search
from clip_client.search.store_index import store_index

__all__ = ("Hit", "PhotoIndex", "QueryError", "search", "store_index")
