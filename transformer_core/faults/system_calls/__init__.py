"""Calls of the system that fail on purpose: is every one told, and is nothing wrong left behind?"""
