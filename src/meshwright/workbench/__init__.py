"""The browser workbench: documents of what can be looked at, the page that shows one, the server that makes them."""
