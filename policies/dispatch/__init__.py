"""Which worker takes a request, whose turn it is, and what its answer teaches."""
