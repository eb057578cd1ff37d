"""Tests on real engines and real models, which `make engines` installs; they start and stop the servers themselves."""
