"""A real sglang server, started and ended by miles.

Ray actor ──pipe──► guard ──► sglang.launch_server ──► scheduler, detokenizer, …
  polls /model_info          ends all of it when the pipe closes, however the actor ended
"""
