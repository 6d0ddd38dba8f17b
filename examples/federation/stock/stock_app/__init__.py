"""A Flower app that trains with a method of Hush's: docs/federation-python.md."""
