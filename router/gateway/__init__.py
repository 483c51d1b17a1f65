"""One request: parse, identify, dispatch, learn from the answer."""
