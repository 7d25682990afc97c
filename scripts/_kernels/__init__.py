"""Tables of what runtimes run, asked of the runtimes themselves."""
