"""A small inference engine for machines without a GPU that answers SGLang's native HTTP API.

    HTTP (aiohttp, event loop)  ──requests──►  worker thread: scheduler ──► runner (torch) ──► slots (KV cache)
                                ◄──answers──   one hand-over per decode step

Run it with ``python -m miles.engines.embedded --model-path FOLDER --port 30000``, or start
:class:`miles.engines.embedded.server.EmbeddedServer` on an event loop of your own.
"""
