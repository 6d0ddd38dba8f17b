"""A real federation: who belongs to it, what it agrees on, and the two ends of a round, by bytes alone.

Whoever carries the bytes (Flower, in `hush.engines.flower`) is trusted with nothing: every letter is signed, and what is secret in
a round is sealed by `hush.secagg`. `Server` and `Member` are state machines; docs/federation.md tells the whole story.
"""
