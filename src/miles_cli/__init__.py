"""The command line of miles: parse, resolve, render, dispatch."""
