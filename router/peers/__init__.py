"""Command lines of other routers: which of their flags is taken, has no effect, or stops the start.

argv ──Parser──> flags of ours ──────────────────┐
         └─────> flags of theirs ──translated──> values by key, one note for people, problems
"""

from router.peers.page import peers_reference as peers_reference
from router.peers.rows import ROUTERS as ROUTERS
from router.peers.rows import PeerFlag as PeerFlag
from router.peers.table import ANSWERS as ANSWERS
from router.peers.table import FLAGS as FLAGS
from router.peers.translation import Translation as Translation
from router.peers.translation import translated as translated
