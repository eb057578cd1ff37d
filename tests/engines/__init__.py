"""Tests of `kvrelease.engines`."""
