"""Sessions: which requests belong together, and which worker served them last.

sessions.py    names of sessions, and the memory of a process
"""

from router.sessions.sessions import Sessions, session_named

__all__ = ["Sessions", "session_named"]
