"""The parts of one gateway process that are no library: what runs, what is reported, who is let in.

`router.app` puts them together.
"""
