"""Stream ids as values: ``(milliseconds of Redis time, sequence)``, which compare as Redis does."""

StreamId = tuple[int, int]

START: StreamId = (0, 0)


def parse_id(text: bytes) -> StreamId:
    """Parse ``b"1700000000000-3"``."""
    milliseconds, _, sequence = text.partition(b"-")
    return int(milliseconds), int(sequence)


def stream_id(position: StreamId) -> str:
    """Format a stream id for Redis."""
    return f"{position[0]}-{position[1]}"
