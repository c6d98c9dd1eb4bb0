"""Pictures and tables made from result files alone."""
