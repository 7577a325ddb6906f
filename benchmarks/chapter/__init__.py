"""The terms of a predicted step, each as a picture of measured rows beside what is predicted, and the rows that are worst."""
