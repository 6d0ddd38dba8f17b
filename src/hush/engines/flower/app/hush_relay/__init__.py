"""A relay between Flower's messages and Hush, at both ends: it opens no letter."""
