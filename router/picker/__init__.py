"""The endpoint picker: a proxy carries the bytes, and asks here where each request should go.

    client ──> Envoy, Istio, GKE, agentgateway ──────the chosen worker──────> engine
                      │        ^
         ext_proc: head, body  │ x-gateway-destination-endpoint; then head and body of the answer
                      v        │
               `Picker` ──> `ProxyStream` ──> `PickedExchange` ──> the gateway's decision, queue, feedback

For operators: docs/picker.md. The protocol is that of the Gateway API Inference Extension
(``docs/proposals/004-endpoint-picker-protocol``, v1.0.0), over Envoy's external processing.

gRPC is an extra, ``cacheway[picker]``; this package is imported only where ``picker.enabled`` says so.
"""

from router.picker.server import Picker

__all__ = ["Picker"]
