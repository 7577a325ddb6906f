"""Jobs whose program changes by step: who decides it, how the ranks get it and go over to it."""
