"""What is trained on: memory-mapped images with labels, origin and stable ids."""

from puma.pools.pool import Batch, Pool, list_pools, open_pools, to_unit
from puma.pools.sampler import MixedSampler, crop_and_flip, shift_and_mirror
from puma.pools.store import Origin, is_pool

__all__ = [
    "Batch",
    "MixedSampler",
    "Origin",
    "Pool",
    "crop_and_flip",
    "is_pool",
    "list_pools",
    "open_pools",
    "shift_and_mirror",
    "to_unit",
]
