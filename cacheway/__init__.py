"""Cacheway: the version, and the names that a policy of one's own needs.

    import cacheway

    def fewest_tokens(request: cacheway.RequestView, workers: cacheway.WorkersView) -> cacheway.Floats:
        return workers.inflight_tokens

``import cacheway`` alone imports nothing else; each name loads its module when it is first used. Programs
import these names from here only: the other packages have other names in a checkout than in an installed
wheel (decision 0069).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    from router.own_policies import OwnPolicy as OwnPolicy
    from router.own_policies import RequestView as RequestView
    from router.own_policies import WorkersView as WorkersView

    Floats = NDArray[float64]
    """A number for each candidate."""
    __version__: str

__all__ = ["Floats", "OwnPolicy", "RequestView", "WorkersView", "__version__"]


def __getattr__(name: str) -> Any:
    """Load a name of ``__all__`` when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: Any
    if name == "__version__":
        value = import_module("importlib.metadata").version(__name__)
    elif name == "Floats":
        value = import_module("numpy.typing").NDArray[import_module("numpy").float64]
    else:
        import router.own_policies as home

        value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
