"""What ``make demo`` shows: ``tale``, real decoding; and ``blocks``, the KV cache manager alone."""
