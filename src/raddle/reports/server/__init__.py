"""The page live on localhost: children do the work, a folder keeps the reports, HTTP shows both.

    page ──POST /api/start──▶ server ──starts──▶ raddle report … --progress ──lines──▶ GET /api/state
                                                        └──▶ folder/NAME.html, NAME.json, NAME/METHOD.json

The server itself never imports torch: what it needs of raddle it asks of children.
"""
