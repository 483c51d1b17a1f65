"""Settings that change while the gateway serves, for all replicas.

    PATCH /settings ── checked as a whole ──> SettingsChanged ──log──> `policies.Overrides` of every replica
                                                                           │ follow
                    parts <── new settings ── current = started + overrides

* Only settings declared ``live`` (`router.settings`) change. A change with any error changes nothing.
* A value that was set here overrides each replica's own until it is taken back (None).
* All parts change in one turn of the event loop, so a decision uses the old settings or the new ones.
* A replica leaves out whole changes that it cannot use, the oldest first (another version wrote them, or they
  contradict its start), and lists them in `LiveSettings.refused`.
* Without Redis a change applies here at once, and elsewhere when Redis is back.

A rollback gives every setting the value that it had before a change. It is a change like any other.
"""

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from policies import Overrides, SettingsChanged
from router.catalogue import CATALOGUE
from router.errors import ClientError, SettingsError
from router.settings import Settings
from router.shared import LogPort
from router.sources import Loaded, Origin, changed, no_such_setting, printable

logger = logging.getLogger(__name__)

NUMBER_MAX, SECONDS_MIN = 1e12, 1e-3
"""An absurd value at a start shows at once, and in one replica. Here it would stop all of them: a number that
overflows when it is counted in microseconds, or a time so short that nothing else gets done."""

TEXT_MAX = 4096
"""Longest value, as JSON: all replicas keep it, with the last 200 changes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Values before and after, by key, of a change or dry run; no ``change_id``: nothing changed."""

    change_id: str
    values: Mapping[str, tuple[Any, Any]]


def value_of(settings: Settings, key: str) -> Any:
    """The value of a setting by its dotted key."""
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


class LiveSettings:
    """Current settings of one replica: those of the start, with the ``overrides`` of all replicas.

    ``problems`` says why this process cannot use settings that are valid by themselves.

    Attributes:
        refused: Reason for each override that this replica cannot use.
        changed_count: Number of changes of `current`, each given to all ``parts``.
    """

    def __init__(
        self,
        loaded: Loaded,
        overrides: Overrides,
        log: LogPort,
        *,
        parts: Mapping[str, Callable[[Settings], None]],
        problems: Callable[[Settings], list[str]] = lambda _: [],
    ) -> None:
        self.started = loaded.settings
        self.overrides = overrides
        self.current = loaded.settings
        self.refused: dict[str, str] = {}
        self.changed_count = 0
        self._origins = loaded.origins
        self._publish = log.publish
        self._now_us = log.now_us
        self._replica = log.replica
        self._parts, self._problems = parts, problems
        self._revision = overrides.revision

    # Changes that the log brings.

    def follow(self) -> None:
        """Apply changed overrides to the parts. Never raises: failures are logged."""
        if self._revision == self.overrides.revision:
            return
        self._revision = self.overrides.revision
        before = self.current, self.refused
        self.current, self.refused = self._effective()
        if self.refused and self.refused != before[1]:
            logger.warning(
                "this replica cannot use some settings, and keeps its own",
                extra={"event": "settings.refused", "reasons": self.refused},
            )
        if self.current == before[0]:
            return
        self.changed_count += 1
        new = {key: value_of(self.current, key) for key in _different(before[0], self.current)}
        logger.info("settings changed", extra={"event": "settings.changed", "values": new})
        for name, use in self._parts.items():
            try:
                use(self.current)
            except Exception:
                logger.exception(
                    "a part does not apply the new settings", extra={"event": "settings.failed", "part": name}
                )

    # Questions of operators.

    def origin(self, key: str) -> Origin:
        """Return the source of a setting's value."""
        change = self.overrides.newest.get(key)
        if change is not None and change.values[key] is not None and key not in self.refused:
            return Origin("runtime", change.change_id)
        return self._origins.get(key, Origin("default"))

    def change(
        self,
        values: Mapping[str, Any],
        *,
        actor: str = "",
        comment: str = "",
        expected: str | None = None,
        dry_run: bool = False,
    ) -> Outcome:
        """Change settings for all replicas; None takes an override back.

        ``expected`` is the `Overrides.digest` that the caller saw, or None. A ``dry_run`` only checks. Raise
        ClientError, and change nothing, if a value is wrong or settings have changed since ``expected``.
        """
        self._expect(expected)
        own = {key: value for key, value in values.items() if value is not None}
        taken_back = {key: self._started_value(key) for key, value in values.items() if value is None}
        judged = self._judged_or_error({**own, **taken_back})
        texts = {key: _text(value_of(judged, key)) for key in own} | dict.fromkeys(taken_back)
        for key, text in texts.items():
            if text is not None and len(text) > TEXT_MAX:
                raise ClientError(
                    f"The value of {key} is longer than {TEXT_MAX} characters.",
                    code="invalid_settings",
                    param=key,
                )
        return self._say(texts, judged, actor=actor, comment=comment, undoes="", dry_run=dry_run)

    def roll_back(
        self,
        change_id: str,
        *,
        actor: str = "",
        comment: str = "",
        expected: str | None = None,
        dry_run: bool = False,
    ) -> Outcome:
        """Undo a change and all later ones, for all replicas, with arguments and errors as of `change`."""
        self._expect(expected)
        before = self.overrides.before(change_id)
        if before is None:
            raise ClientError(
                f"There is no change {change_id[:100]!r} in the history; GET /settings/history lists it.",
                code="change_not_found",
                param="change_id",
                status=404,
            )
        texts = {key: before.get(key) for key in sorted(before.keys() | self.overrides.values().keys())}
        usable = {key: text for key, text in texts.items() if not self._unusable(key, text)}
        judged = self._judged_or_error(
            {
                key: self._started_value(key) if text is None else orjson.loads(text)
                for key, text in usable.items()
            }
        )
        return self._say(texts, judged, actor=actor, comment=comment, undoes=change_id, dry_run=dry_run)

    # Inside.

    def _say(
        self,
        texts: Mapping[str, str | None],
        judged: Settings,
        *,
        actor: str,
        comment: str,
        undoes: str,
        dry_run: bool,
    ) -> Outcome:
        """Publish the new values of a checked change."""
        usable = self.overrides.values()
        new = {key: text for key, text in texts.items() if text != usable.get(key)}
        values = {
            key: (value_of(self.current, key), value_of(judged, key))
            for key in sorted(new)
            if key in CATALOGUE
        }
        if dry_run or not new:
            return Outcome("", values)
        change_id = secrets.token_hex(8)
        at_us = self.overrides.next_us(self._now_us())
        self._publish(SettingsChanged(change_id, at_us, self._replica, new, actor, comment, undoes))
        self.follow()
        return Outcome(change_id, values)

    def _expect(self, expected: str | None) -> None:
        if expected is not None and expected != self.overrides.digest():
            raise ClientError(
                "The settings have changed since that revision; look at GET /settings again.",
                code="settings_changed",
                param="expected_revision",
                status=409,
            )

    def _started_value(self, key: str) -> Any:
        return value_of(self.started, key) if key in CATALOGUE else None

    def _judged_or_error(self, values: Mapping[str, Any]) -> Settings:
        try:
            return self._judged(self.current, values)
        except SettingsError as error:
            raise ClientError(
                "; ".join(problem.removeprefix("runtime: ") for problem in error.problems),
                code="invalid_settings",
                param=printable(next(iter(values))) if values else None,
            ) from error

    def _judged(self, settings: Settings, values: Mapping[str, Any]) -> Settings:
        """Return the settings with some values replaced; raise SettingsError with all errors."""
        problems = [why for key in values if (why := _never(key))]
        if problems:
            raise SettingsError(problems)
        judged, names = changed(settings, values), list(self.started.queue.classes)
        news = (key for key in values if value_of(judged, key) != value_of(self.started, key))
        problems = [why for key in news if (why := _absurd(key, value_of(judged, key)))]
        if problems:
            raise SettingsError(problems)
        problems = self._problems(judged)
        if problems:
            raise SettingsError(problems)
        if list(judged.queue.classes) != names:
            raise SettingsError(
                [f"queue.classes: only shares may change, those of {', '.join(names)}, in this order"]
            )
        return judged

    @staticmethod
    def _unusable(key: str, text: str | None) -> str:
        """Return the reason why an override can never be used here; empty for none."""
        try:
            orjson.loads("null" if text is None else text)
        except ValueError:
            return f"{key}: its value is no JSON"
        return _never(key)

    def _effective(self) -> tuple[Settings, dict[str, str]]:
        """Return the current settings, and the reason for each refused override."""
        texts = self.overrides.values()
        refused = {key: why for key, text in texts.items() if (why := self._unusable(key, text))}
        values = {key: orjson.loads(text) for key, text in texts.items() if key not in refused}
        try:
            return self._judged(self.started, values), refused
        except SettingsError:
            return self._best(values, refused)

    def _best(self, values: Mapping[str, Any], refused: dict[str, str]) -> tuple[Settings, dict[str, str]]:
        """Apply whole changes, the newest first, where they do not all fit together.

        Changes that did not fit are tried again while that helps, since a change may need an older one.
        """
        settings, pending = self.started, self._by_change(values)
        while True:
            again: list[dict[str, Any]] = []
            reasons: dict[str, str] = {}
            for part in pending:
                try:
                    settings = self._judged(settings, part)
                except SettingsError as error:
                    again.append(part)
                    reasons |= dict.fromkeys(part, "; ".join(error.problems))
            if len(again) == len(pending):
                return settings, refused | reasons
            pending = again

    def _by_change(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Group values by their change, the newest first."""
        newest = self.overrides.newest
        order = sorted(values, key=lambda key: (newest[key].at_us, newest[key].replica), reverse=True)
        groups: dict[str, dict[str, Any]] = {}
        for key in order:
            groups.setdefault(newest[key].change_id, {})[key] = values[key]
        return list(groups.values())


def _never(key: str) -> str:
    """Return the reason why a setting cannot change while the gateway serves; empty if it can."""
    if key not in CATALOGUE:
        return no_such_setting(key)
    return "" if CATALOGUE[key].live else f"{key} cannot change while the gateway serves; it needs a restart"


def _absurd(key: str, value: Any) -> str:
    """Return the harm that an allowed value would do; empty for none."""
    numbers = value.values() if isinstance(value, dict) else (value,)
    for number in numbers:
        if isinstance(number, int | float) and abs(number) > NUMBER_MAX:
            return f"{key}: a value above {NUMBER_MAX:g} is refused while the gateway serves"
        if _SECONDS.search(key) and 0 < number < SECONDS_MIN:
            return f"{key}: a time below {SECONDS_MIN:g} s is refused while the gateway serves"
    return ""


_SECONDS = re.compile(r"(?<!_per)_(s|s_max|s_min|secs)$")


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _different(before: Settings, after: Settings) -> Iterable[str]:
    return (key for key in CATALOGUE if value_of(before, key) != value_of(after, key))
