"""The page at /, until the playground is there: what is loaded, and how to hear it."""

from html import escape

from polyvox.models.identity import ModelFacts

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Polyvox</title>
<style>
  :root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
  body {{ max-width: 42rem; margin: 10vh auto; padding: 0 1rem; }}
  pre {{ overflow-x: auto; padding: 1rem; border: 1px solid; border-radius: .5rem; }}
</style>
<h1>Polyvox</h1>
<p>{model} is loaded. Voices: {voices}.</p>
<pre>curl {address}/v1/audio/speech \\
  -H 'content-type: application/json' \\
  -d '{{"input": "Hello there."}}' -o hello.mp3</pre>
<p><a href="{address}/docs">All requests</a> · <a href="{address}/v1/audio/voices">voices</a> ·
<a href="{address}/readyz">ready?</a> · <a href="{address}/metrics">metrics</a></p>
"""


def page(facts: ModelFacts, voices: list[str], address: str) -> str:
    names = ", ".join(voices) or "none yet"
    return PAGE.format(model=escape(facts.identity.name), voices=escape(names), address=escape(address))
