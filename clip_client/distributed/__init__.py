"""Embeds and compares more photos than one machine can, on a Ray cluster; loads Ray and pyarrow only when used."""

from clip_client.distributed.cluster import DistributedError
from clip_client.distributed.component_groups import DuplicateSummary
from clip_client.distributed.duplicates import find_duplicates
from clip_client.distributed.embedding import EmbeddingSummary, embed_dataset, embed_partitions
from clip_client.distributed.sources import Partition, image_files, images_below, parquet_images, webdataset_images

__all__ = (
    "DistributedError",
    "DuplicateSummary",
    "EmbeddingSummary",
    "Partition",
    "embed_dataset",
    "embed_partitions",
    "find_duplicates",
    "image_files",
    "images_below",
    "parquet_images",
    "webdataset_images",
)
