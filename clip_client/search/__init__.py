"""Exact search for photos by words, by another photo, or by a vector, in a store or in the output of ``embed``."""

from clip_client.search.photo_index import Hit, PhotoIndex
from clip_client.search.query import QueryError, search
from clip_client.search.store_index import store_index

__all__ = ("Hit", "PhotoIndex", "QueryError", "search", "store_index")
