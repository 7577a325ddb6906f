"""Several servers of one model behind one address: requests go where the fleet's router says, and who dies is replaced."""
