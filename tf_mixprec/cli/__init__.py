"""The command line: one function per subcommand, returning an exit status."""
