"""HTTP/1.1 streaming between client and worker."""
