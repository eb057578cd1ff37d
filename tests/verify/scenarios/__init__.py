"""Ways in which stale KV is consumed after an upgrade, each as one run of the whole gate, clean and stale."""
