"""The HTTP server of `raddle serve`: child processes make reports, a folder stores them, a page shows them.

    page ──POST /api/start──▶ server ──starts──▶ raddle report … --progress ──lines──▶ GET /api/state
                                                        └──▶ folder/NAME.html, NAME.json, NAME/METHOD.json

The server itself never imports torch, so that it starts at once: child processes run all of raddle that
needs torch.
"""
