"""The readers of the catalogue's data sets: pure functions from verified files to tensors."""
