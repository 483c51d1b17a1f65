"""Encoders of a fleet that disaggregates them (EPD): which one gets the media of a request."""

from router.encoding.encoding import Encoding

__all__ = ["Encoding"]
