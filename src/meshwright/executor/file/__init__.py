"""Files that are whole or not there, and folders with one owner."""
