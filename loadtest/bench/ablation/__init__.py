"""Value of better knowledge, on real engines: the same load placed by several arms (see ``__main__``)."""
