"""What is trained on: memory-mapped images or pictures in their shards, with labels, origin and stable ids."""

from puma.pools.datasets import CIFAR10, CIFAR100, FASHION_CLASSES, MNIST_CLASSES, read_cifar, read_digits, read_mnist
from puma.pools.decoding import DecodePolicy, is_picture
from puma.pools.distort import distort_pool
from puma.pools.npz import read_npz
from puma.pools.pictures import list_pictures, write_picture_folder
from puma.pools.pool import Batch, Pool, PoolSource, list_pools, open_inner_pools, open_pools, to_unit
from puma.pools.sampler import MixedSampler, crop_and_flip, draw_passes, mix_bits, shift_and_mirror
from puma.pools.shard_import import ImportedPool, ShardOptions, index_parquet, index_tars, index_webdataset
from puma.pools.shards import ShardPictures, hash_key, tell_suffix
from puma.pools.store import Origin, is_pool, read_pool_links
from puma.pools.subsets import read_ids, save_subset
from puma.pools.summary import describe_pool, draw_grid
from puma.pools.superclasses import (
    HELD_BACK,
    POPULARITY_RATIO,
    choose_here,
    choose_superclasses,
    count_images,
    describe_superclasses,
    draw_superclasses,
    extend_tree,
    make_class_map,
    read_class_map,
    read_published_tree,
    read_tree,
    write_class_map,
)
from puma.pools.tensors import Array
from puma.pools.writer import Chunk, PoolPart, write_parts

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "FASHION_CLASSES",
    "HELD_BACK",
    "MNIST_CLASSES",
    "POPULARITY_RATIO",
    "Array",
    "Batch",
    "Chunk",
    "DecodePolicy",
    "ImportedPool",
    "MixedSampler",
    "Origin",
    "Pool",
    "PoolPart",
    "PoolSource",
    "ShardOptions",
    "ShardPictures",
    "choose_here",
    "choose_superclasses",
    "count_images",
    "crop_and_flip",
    "describe_pool",
    "describe_superclasses",
    "distort_pool",
    "draw_grid",
    "draw_passes",
    "draw_superclasses",
    "extend_tree",
    "hash_key",
    "index_parquet",
    "index_tars",
    "index_webdataset",
    "is_picture",
    "is_pool",
    "list_pictures",
    "list_pools",
    "make_class_map",
    "mix_bits",
    "open_inner_pools",
    "open_pools",
    "read_cifar",
    "read_class_map",
    "read_digits",
    "read_ids",
    "read_mnist",
    "read_npz",
    "read_pool_links",
    "read_published_tree",
    "read_tree",
    "save_subset",
    "shift_and_mirror",
    "tell_suffix",
    "to_unit",
    "write_class_map",
    "write_parts",
    "write_picture_folder",
]
