"""Which replicas there are, and opening them."""
