"""How prefill workers hand KV blocks to decode workers."""
