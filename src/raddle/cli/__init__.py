"""The command line: one file for each verb (sub-command); main.py starts it.

The verbs share options.py, output.py and preparation.py.
"""
