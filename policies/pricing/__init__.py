"""Views of requests and workers, as columns, and the time that a request needs on each worker."""
