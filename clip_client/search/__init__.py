"""Finds photos by words, by another photo, or by a vector: exactly, among what a store or ``clip-client embed`` holds.

The rooms of ``dedup`` never import it. :class:`PhotoIndex` holds vectors and finds the nearest; ``query`` reads what a
person asks for; ``filters`` and ``pictures`` turn what is near into rows that a person wants to see.
"""

from clip_client.search.photo_index import Hit, PhotoIndex
from clip_client.search.query import QueryError, search
from clip_client.search.store_index import store_index

__all__ = ("Hit", "PhotoIndex", "QueryError", "search", "store_index")
