"""Facts that a lease gives about itself."""

from loadtest.engine.kv.lease import Lease


def test_what_needs_no_prefill_is_what_the_device_and_the_host_have() -> None:
    lease = Lease(b"", 100, 10, 3.0)
    assert (lease.state, lease.ready_s, lease.matched_tokens) == ("open", 3.0, 0)

    lease.device_tokens, lease.host_tokens, lease.pool_tokens = 40, 20, 15
    assert lease.matched_tokens == 60
