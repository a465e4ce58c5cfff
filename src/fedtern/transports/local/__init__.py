"""Ways to run a federation. Each drives the same server and client."""
