"""Settings of the shared state."""

import pytest

from router.shared import SharingRules


def test_the_url_has_one_source() -> None:
    with pytest.raises(ValueError, match="not both"):
        SharingRules(redis_url="redis://r", redis_url_file="url")
