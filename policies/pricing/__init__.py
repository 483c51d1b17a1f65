"""What a decision sees of workers, as columns, and the time that a request would need on each of them."""
