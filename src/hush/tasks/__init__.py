"""What is learned, and from whom: data sets, partitions, models, and the user's own."""
