"""One file per source that a pool can be made from."""
