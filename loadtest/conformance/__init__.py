"""Black-box suites of other routers, run against Cacheway with their own command lines and mock workers.

    package index ──pip──> .peers/sglang_router-0.3.0/py_test/integration_mock
    a checkout ───────────> py_test/integration      │
                                                     │ python3 -m sglang_router.launch_router ARGS
                                                     v
    .peers/shims/sglang_router/launch_router.py ── exec ──> cacheway serve ARGS

Nothing is translated: the shim passes the arguments on as they are. The environment says what the suites take
for granted: the admin API on the data port, and an end without delay.
"""
