"""Requests, pages, batches and the cycle: what turns a model into an engine."""
