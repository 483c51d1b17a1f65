"""Wire formats of answers: one file per API, each in both dialects."""
