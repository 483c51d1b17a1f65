"""Loop that checks the links and logs which went down or came back (`policies.LinkWatch`).

`router.app` starts `watch_links`, which looks every `LOOK_S`. If it fails, links count as configured.
"""

import asyncio
import logging

from policies.disaggregation import LINK_LOOK_S as LOOK_S
from policies.disaggregation import LinkWatch

logger = logging.getLogger(__name__)


async def watch_links(watch: LinkWatch) -> None:
    """Check the links until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        for link, down in watch.look():
            if down:
                message = "a link is down: its transfers failed, and one now and then tries it"
                logger.warning(message, extra={"event": "link.down", "link": link})
            else:
                logger.info("a link is up again", extra={"event": "link.up", "link": link})
