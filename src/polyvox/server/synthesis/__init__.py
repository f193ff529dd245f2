"""From a parsed request to encoded audio: segments, engine streams, output encoding."""
