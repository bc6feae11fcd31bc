"""Output streams of handlers: what both databases keep of them. ``worker/stream_writer.py`` writes them."""
