"""Looks at the links while the gateway runs, and logs which went down or came back (`policies.LinkWatch`).

`LinkWatch.run` is started by `router.app` and looks every `LOOK_S`. If it fails, links count as configured.
"""

import asyncio
import logging

import policies
from policies import LINK_LOOK_S as LOOK_S
from router.fleet.local_worker import LocalWorker

logger = logging.getLogger(__name__)


class LinkWatch(policies.LinkWatch):
    """Watches the links for one replica."""

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            for link, down in self.look():
                if down:
                    message = "a link is down: its transfers failed, and one now and then tries it"
                    logger.warning(message, extra={"event": "link.down", "link": link})
                else:
                    logger.info("a link is up again", extra={"event": "link.up", "link": link})

    def connected(self, local: LocalWorker, connect_s: float) -> None:
        """A connection was made to a worker."""
        self.measured(local.worker.site, connect_s)
