"""Images of our own: an EDM that is trained on a pool and makes another one of origin ``generated``."""
