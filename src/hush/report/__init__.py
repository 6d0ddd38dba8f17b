"""Tables, plots and one page for people."""
