"""How streams run: many at once, one frame step for all of them, nobody starved."""
