"""From paths and bytes to parsed text: discovery, prefilter, decoding, notebooks, parsing, and the cache of results."""
