"""Tests of the page of a plan."""
