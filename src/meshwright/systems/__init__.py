"""The published systems, one file each, by family. They import the core; the core never imports them."""
