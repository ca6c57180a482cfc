"""Copies of parameters agree at their homes: gradients are pushed there and updated rows pulled back."""
