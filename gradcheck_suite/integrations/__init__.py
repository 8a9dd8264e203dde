"""Audit the trainings that a framework runs, with one line in the user's program.

One module for each framework; nothing imports any of them, nor the framework, before the program
does.
"""
