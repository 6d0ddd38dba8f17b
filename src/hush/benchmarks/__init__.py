"""Figures beside the peers', measured in one run on one machine, as ratios."""
