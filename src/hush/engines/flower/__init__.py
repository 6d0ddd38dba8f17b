"""Flower carries a federation's letters, and nothing else: processes that can read neither data nor keys.

`app/` is what Flower runs at both ends, a relay between its messages and a Unix socket, without torch and without Hush.
`superlink` is the server's side (a `Carrier`), `supernode` a client's; both watch over Flower's processes and start them again.
"""
