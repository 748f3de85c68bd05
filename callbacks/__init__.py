"""Guests in other people's training loops."""
