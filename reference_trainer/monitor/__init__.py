"""Looking at a run while it goes on: heartbeats that its ranks write, and what the terminal and a page make of them.

heartbeat.py writes, in the trainer; eta.py is the time that is left; reading.py and history.py read what was written,
without torch, and know nothing else of a run; server.py hands it to page.html, and connections.py
to whoever asks.
"""
