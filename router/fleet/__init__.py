"""Which workers exist, and whether they are well."""
