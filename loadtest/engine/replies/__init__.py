"""How answers look on the wire: one file per API, each in both dialects."""
