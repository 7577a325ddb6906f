"""The workbench's server: loopback only; documents of what the words of the address say."""
