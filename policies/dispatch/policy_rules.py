"""Choice of the policies: which one places requests, which one decodes, and which one is only asked."""

from dataclasses import dataclass, fields

from policies.declared import setting
from policies.scoring import DECODE_COST, DECODE_POLICIES, OWN_POLICY, POLICIES, is_own, make_policy

_ALLOWED = f"one of {', '.join(POLICIES)}, or PACKAGE.MODULE:NAME of your own"


@dataclass(frozen=True)
class PolicyRules:
    """Policies that choose workers, with their options: the first part of the section placement."""

    policy: str = setting(
        "expected_cost",
        "Policy that chooses a worker. The default prices cache, load and the harm to later requests in "
        "seconds of time to first token; the others are the peers' rules, for comparison and migration. "
        "PACKAGE.MODULE:NAME, or an entry point of the group cacheway.policies, is one of your own "
        "(docs/own-policy.md).",
        choices=tuple(POLICIES),
        or_pattern=OWN_POLICY,
        allowed=_ALLOWED,
        live=True,
        common=True,
    )
    prefill_policy: str | None = setting(
        None,
        "Policy that chooses among prefill workers, and between them and plain workers. Empty: "
        "placement.policy, as with the peers.",
        choices=tuple(POLICIES),
        or_pattern=OWN_POLICY,
        allowed=_ALLOWED,
        live=True,
    )
    decode_policy: str = setting(
        DECODE_COST,
        "Policy that chooses the decode worker, among those with room that the prefill worker can hand over "
        "to. The default prices the wait for KV memory, the transfer that prefill does not hide, and the "
        "output at that worker's batch and context, in seconds; the others are the peers'.",
        choices=DECODE_POLICIES,
        live=True,
    )
    policy_options: dict[str, float] = setting(  # noqa: RUF009 - makes a field with a factory
        {},
        "Numbers that the chosen policies take, as NAME=VALUE; each takes those that it has. Empty keeps "
        "their own defaults.",
        live=True,
    )
    shadow_policy: str = setting(
        "",
        "Second policy that is asked about a share of the requests and never obeyed. GET /shadow and the "
        "metrics cacheway_shadow_* tell how often it agrees, and the effect of its choices by the "
        "service-time model. Empty: none is asked, which costs nothing.",
        choices=("", *POLICIES),
        or_pattern=OWN_POLICY,
        allowed=_ALLOWED,
        live=True,
    )
    shadow_policy_options: dict[str, float] = setting(  # noqa: RUF009 - makes a field with a factory
        {},
        "Numbers that the shadow policy takes, as NAME=VALUE. Empty keeps its own defaults.",
        live=True,
    )
    shadow_ratio: float = setting(
        0.1,
        "Share of the prompts that the shadow policy is asked about; the same ones in all replicas. Each "
        "costs as much as a placement, some 20 to 150 us.",
        ge=0,
        le=1,
        live=True,
    )

    def __post_init__(self) -> None:
        """Refuse options that no chosen policy has; those of a user's policy are judged where it is loaded.

        Raises:
            ValueError: An option is unknown or out of range, or the shadow policy's options lack a policy.
        """
        owned = {name: self.options_of(name) for name in self._chosen}
        unknown = self.policy_options.keys() - set().union(*owned.values())
        # The error for an option that no chosen policy has lists the options of the main policy.
        if not is_own(self.policy):
            extra = {name: self.policy_options[name] for name in unknown}
            make_policy(self.policy, extra | owned[self.policy])
        for name, options in owned.items():
            if name != DECODE_COST and not is_own(name):
                make_policy(name, options)
        if self.shadow_policy:
            if not is_own(self.shadow_policy):
                make_policy(self.shadow_policy, self.shadow_policy_options)
        elif self.shadow_policy_options:
            raise ValueError("shadow_policy_options need a shadow_policy")

    @property
    def _chosen(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.policy, self.prefill_policy or self.policy, self.decode_policy)))

    def options_of(self, policy: str) -> dict[str, float]:
        """Return the entries of ``policy_options`` that a policy has.

        A policy of a user has all that no chosen policy of the registry has.
        """
        if is_own(policy):
            others = [_option_names(name) for name in self._chosen if not is_own(name)]
            taken = set[str]().union(*others)
            return {name: value for name, value in self.policy_options.items() if name not in taken}
        names = _option_names(policy)
        return {name: value for name, value in self.policy_options.items() if name in names}


def _option_names(policy: str) -> set[str]:
    kind = POLICIES[policy].options if policy in POLICIES else None
    return {option.name for option in fields(kind)} if kind is not None else set()
